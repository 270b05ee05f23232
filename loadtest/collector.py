"""The other end of a run: prepares the server, collects the records of all workers, writes the raw files."""

import importlib.metadata
import os
import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .answers import AnswerError
from .config import LoadConfig
from .http_stream import request_json
from .records import REQUESTS, RecordError, Run, read_requests, write_run
from .validity import problems, start_lag
from .workloads import load_workload

SECRETS = {"api_key", "admin_api_key", "ssl_keyfile_password"}
PACKAGES = ("jetspec-sglang", "locust", "gevent", "sglang")
FLUSH_PATIENCE = 30  # seconds in which a server may finish what it is doing before its cache is emptied


class Collector:
    """Writes `requests.jsonl` as reports come in and `run.json` at the end.

    Raises:
        RecordError: `folder` already holds a run.
        AnswerError: the server can't be reached or can't empty its cache.
    """

    def __init__(self, config: LoadConfig, folder: Path, schedule: list[float] | None, workers: int) -> None:
        self.config, self.folder, self.schedule, self.workers = config, folder, schedule, workers
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / REQUESTS).exists():
            raise RecordError(f"{folder} already holds a run; name another folder or remove it.")
        if config.flush:
            flush_cache(config.url)
        self._before = server_info(config.url)
        self._file = (folder / REQUESTS).open("x", encoding="utf-8")
        self._done: set[int] = set()
        self._loops: dict[int, dict[str, float]] = {}
        self._zero_utc = ""

    def begin(self, lead: float) -> float:
        """Set the run's zero `lead` seconds from now; returns it as `time.time()`."""
        zero = time.time() + lead
        self._zero_utc = datetime.fromtimestamp(zero, UTC).isoformat(timespec="milliseconds")
        return zero

    def receive(self, report: dict[str, Any], finished: Callable[[], None]) -> None:
        """A worker's report; calls `finished` when the last worker is done."""
        self._file.writelines(report["rows"])
        self._file.flush()
        if report["loop"]:
            self._loops[report["worker"]] = report["loop"]
        if report["done"] and report["worker"] not in self._done:
            self._done.add(report["worker"])
            if len(self._done) == self.workers:
                finished()

    def close(self) -> Run:
        """Write `run.json`."""
        self._file.close()
        requests = read_requests(self.folder)
        names = ("p50_s", "p90_s", "p99_s", "max_s")
        loop = {name: max((worker[name] for worker in self._loops.values()), default=0.0) for name in names}
        stopped = len(self._done) < self.workers
        reasons = problems(requests, self.schedule, loop, stopped_early=stopped)
        try:
            after = server_info(self.config.url)
        except AnswerError as error:
            after = None
            reasons.append(f"The server can't be reached after the run ({error}).")
        run = Run(
            cell=self.config.cell,
            method=self.config.method,
            config=self.config.model_dump(mode="json"),
            workload=load_workload(self.config).describe(),
            zero_utc=self._zero_utc,
            schedule_s=None if self.schedule is None else [round(time, 6) for time in self.schedule],
            window_s=[self.config.warmup_s, self.config.end_s],
            workers=self.workers,
            lag=start_lag(requests),
            loop=loop,
            valid=not reasons,
            reasons=reasons,
            machine=machine(),
            versions=versions(),
            server_before=self._before,
            server_after=changes(self._before, after),
        )
        write_run(self.folder, run)
        return run


def flush_cache(url: str) -> None:
    """Raises AnswerError: the server does not empty its cache."""
    try:
        request_json(f"{url}/flush_cache?timeout={FLUSH_PATIENCE}", "POST", timeout=2 * FLUSH_PATIENCE)
    except AnswerError as error:
        if error.status is None:
            raise
        raise AnswerError(
            f"{url}/flush_cache answered {error.status} ({error}); turn flush off for a server without it.",
            error.status,
        ) from error


def server_info(url: str) -> dict[str, Any] | None:
    """`brief` of the server's `/server_info`; None from a server that has no such page.

    Raises:
        AnswerError: the server can't be reached.
    """
    try:
        info = request_json(f"{url}/server_info")
    except AnswerError as error:
        if error.status is None:
            raise
        return None
    return brief(info) if isinstance(info, dict) else None


def brief(info: dict[str, Any]) -> dict[str, Any]:
    """`/server_info` without secrets, and without the flags that SGLang repeats in each internal state."""
    kept = {key: value for key, value in info.items() if key not in SECRETS}
    if isinstance(states := info.get("internal_states"), list):
        kept["internal_states"] = [
            {key: value for key, value in state.items() if key not in SECRETS and info.get(key) != value}
            for state in states
        ]
    return kept


def changes(before: dict[str, Any] | None, after: dict[str, Any] | None) -> dict[str, Any] | None:
    """What of `after` is not already in `before`."""
    if before is None or after is None:
        return after
    return {key: value for key, value in after.items() if key not in before or before[key] != value}


def machine() -> dict[str, Any]:
    """Of this process."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cpu": _cpu(),
        "cores": cores,
        "memory_gb": round(memory, 1),
        "system": f"{platform.system()} {platform.machine()}",
    }


def versions() -> dict[str, str]:
    """Of this process's packages; one that is not installed is left out."""
    installed = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
