"""One run from outside: Locust as a child process, what it has measured so far, and the finished records.

Locust replaces Python's blocking calls by gevent's in its whole process, so it never runs in this one.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .arrivals import schedule
from .bootstrap import quantile
from .config import LoadConfig
from .metrics import ttft
from .records import REQUESTS, RUN, Run, parse_requests, read_run
from .workloads import load_workload

LOCUSTFILE = Path(__file__).with_name("locustfile.py")
PARENT = "LOADTEST_PARENT"  # environment variable: id of the process without which Locust ends
POOL = 10  # users to begin with in an open loop; it grows by itself
LOOK = 0.5  # seconds between looks at the records
PATIENCE = 15  # seconds for Locust to end after it was asked to


class RunError(RuntimeError):
    """The run did not happen; the message ends with the last lines of Locust's log."""


@dataclass(frozen=True)
class Progress:
    """What the records say so far. `at_s` is the last answer's end, in seconds since the run's zero."""

    at_s: float = 0.0
    end_s: float = 0.0
    due: int | None = None  # arrivals of an open loop until `at_s`
    scheduled: int | None = None
    completed: int = 0
    failed: int = 0
    ttft_p50_s: float | None = None
    tokens: int = 0


def run(
    config: LoadConfig,
    folder: Path,
    *,
    workers: int = 1,
    watch: Callable[[Progress], None] = lambda progress: None,
) -> Run:
    """Run Locust headless and return the head of its records, which lie in `folder` (see `records`).

    Args:
        folder: made here; must not hold a run.
        workers: processes that generate; one is enough for some hundred requests a second.
        watch: called about twice a second.

    Raises:
        ScheduleError, WorkloadError: the configuration can't be played.
        RunError: Locust ended without records.
    """
    times = schedule(config) if config.open_loop else None
    load_workload(config)
    folder.mkdir(parents=True, exist_ok=True)
    users = POOL * workers if config.open_loop else config.concurrency
    command = [
        *(
            sys.executable,
            "-m",
            "locust",
            "-f",
            str(LOCUSTFILE),
            "--headless",
            "--only-summary",
            "--skip-log-setup",
        ),
        *("--users", str(users), "--spawn-rate", str(users), "--exit-code-on-error", "0"),
        *(("--processes", str(workers)) if workers > 1 else ()),
        *("--folder", str(folder), *config.arguments()),
    ]
    log = folder / "locust.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, PARENT: str(os.getpid())},
            start_new_session=True,
        )
    try:
        _follow(process, folder / REQUESTS, config, times, watch)
    finally:
        _stop(process)
    if process.returncode or not (folder / RUN).exists():
        lines = log.read_text(errors="replace").splitlines()[-15:]
        raise RunError("\n".join([f"Locust ended with status {process.returncode}.", *lines]))
    return read_run(folder)


def _follow(
    process: subprocess.Popen,
    file: Path,
    config: LoadConfig,
    times: list[float] | None,
    watch: Callable[[Progress], None],
) -> None:
    """Read new lines of the records until Locust ends."""
    position, at, tokens, failed = 0, 0.0, 0, 0
    first: list[float] = []
    completed = 0
    while process.poll() is None:
        if file.exists():
            with file.open("rb") as lines:
                lines.seek(position)
                new = lines.read()
            new = new[: new.rfind(b"\n") + 1]
            position += len(new)
            for request in parse_requests(new.decode(), str(file)):
                at = max(at, request.end_s)
                completed, failed = completed + request.ok, failed + (not request.ok)
                tokens += request.completion_tokens or 0
                if request.ok and (value := ttft(request)) is not None:
                    first.append(value)
        watch(
            Progress(
                at_s=at,
                end_s=config.end_s,
                due=None if times is None else sum(time <= at for time in times),
                scheduled=None if times is None else len(times),
                completed=completed,
                failed=failed,
                ttft_p50_s=quantile(sorted(first), 0.5) if first else None,
                tokens=tokens,
            )
        )
        try:
            process.wait(LOOK)
        except subprocess.TimeoutExpired:
            continue


def _stop(process: subprocess.Popen) -> None:
    """End Locust with its workers, if it has not ended by itself: politely, then at once."""
    for sig in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, sig)
            deadline = time.monotonic() + PATIENCE
            while process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
