"""The raw files of one run: `requests.jsonl`, a line a request, and `run.json`, all that is known around them.

A run is one cell of a study: one server (method), one arrival process, one workload. Times are seconds on one
monotonic clock since the run's zero. Everything published is computed from these two files by `metrics`; this
module needs the standard library alone, as the audit does.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

REQUESTS, RUN = "requests.jsonl", "run.json"
PHASES = ("warmup", "measure")
FORMAT = 1  # of both files; raised when a field changes its meaning

Row = TypeVar("Row", "Request", "Run")


class RecordError(ValueError):
    """A raw file that is missing or holds something else; the message is one sentence."""


@dataclass
class Request:
    """One request (one turn of a conversation) as its client saw it.

    `scheduled_s` is when it was due, `start_s` when the client began to connect; they differ by the generator's
    lag. In a closed loop, and for later turns of a conversation, a request is due when the answer before it has
    ended. `chunks` holds `[arrival, tokens]` of each piece of the stream that brought tokens; tokens is null
    where the server does not count them in the stream. All counts are the server's own (`usage`, `meta_info`),
    null where it does not tell, never counts of chunks. `rounds`, `accepted_drafts` (bonus not counted) and
    `nodes` (verified, root included) are sums over the request. `histogram[k]` is the number of rounds that
    accepted k drafts.
    """

    id: str  # "ARRIVAL.TURN"
    cell: str
    method: str
    phase: str  # one of PHASES; "warmup" is dropped from latency metrics
    api: str
    scheduled_s: float
    start_s: float
    end_s: float  # the stream ended, or failed
    first_token_s: float | None = None
    chunks: list[list] = field(default_factory=list)
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    rounds: int | None = None
    accepted_drafts: int | None = None
    nodes: int | None = None
    histogram: list[int] | None = None
    domain: str = ""
    prompt: int = 0  # number of the conversation in its workload
    turn: int = 0
    max_tokens: int = 0
    status: int | None = None  # of HTTP; null if there was no answer
    error: str | None = None  # null: complete

    @property
    def ok(self) -> bool:
        """Complete: it ended by itself and brought at least one token."""
        return self.error is None


@dataclass
class Run:
    """The head of a run. `schedule_s` holds every arrival of an open loop, null in a closed one.

    `window_s` is the measured part `[from, to]`: warm-up comes before it, draining after it. `lag` says how late
    requests started, `loop` how late the generator's own timers fired, each `{"p50_s", "p99_s", "max_s"}`.
    A run that is not `valid` must not be published; `reasons` says why, one sentence each.
    `server_before` is `/server_info` before the first request, `server_after` what of it was different after the
    last one; null if the server has none.
    """

    cell: str
    method: str
    config: dict[str, Any]  # config.LoadConfig
    workload: dict[str, Any]  # {"name", "conversations", "sha256"}
    zero_utc: str
    schedule_s: list[float] | None
    window_s: list[float]
    workers: int
    lag: dict[str, float]
    loop: dict[str, float]
    valid: bool
    reasons: list[str]
    machine: dict[str, Any]  # of the generator: {"cpu", "cores", "memory_gb", "system"}
    versions: dict[str, str]
    server_before: dict[str, Any] | None = None
    server_after: dict[str, Any] | None = None
    format: int = FORMAT


def to_line(request: Request) -> str:
    """One line of `requests.jsonl`, with its end of line."""
    return json.dumps(asdict(request), separators=(",", ":"), allow_nan=False) + "\n"


def read_requests(folder: Path) -> list[Request]:
    """All requests of a run, in order of their due times.

    Raises:
        RecordError: no such file, or a line that is no request.
    """
    file = folder / REQUESTS
    return sorted(parse_requests(_text(file), str(file)), key=lambda row: (row.scheduled_s, row.id))


def parse_requests(text: str, where: str) -> list[Request]:
    """Lines of `requests.jsonl`, in their order. Raises RecordError as `read_requests` does."""
    lines = text.splitlines()
    rows = [_row(Request, line, f"{where}, line {n}") for n, line in enumerate(lines, 1)]
    for n, row in enumerate(rows, 1):
        if problem := _problem(row):
            raise RecordError(f"{where}, line {n}: {problem}.")
    return rows


def write_requests(folder: Path, requests: Iterable[Request]) -> None:
    (folder / REQUESTS).write_text("".join(map(to_line, requests)), encoding="utf-8")


def read_run(folder: Path) -> Run:
    """Raises RecordError: no such file, or it is no run of this format."""
    file = folder / RUN
    run = _row(Run, _text(file), str(file))
    if run.format != FORMAT:
        raise RecordError(f"{file} has format {run.format}; this version reads format {FORMAT}.")
    return run


def write_run(folder: Path, run: Run) -> None:
    text = json.dumps(asdict(run), indent=1, ensure_ascii=False, allow_nan=False)
    (folder / RUN).write_text(text + "\n", encoding="utf-8")


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{file} can't be read ({error}).") from error


def _row(kind: type[Row], text: str, where: str) -> Row:
    try:
        row = json.loads(text)
        unknown = set(row) - {f.name for f in fields(kind)}
        if unknown:
            raise TypeError(f"unknown key {sorted(unknown)[0]!r}")
        return kind(**row)
    except (ValueError, TypeError) as error:
        raise RecordError(f"{where} is no {kind.__name__.lower()} of a load test ({error}).") from error


def _problem(row: Request) -> str | None:
    """What a request that really ran can't be, or None."""
    if row.phase not in PHASES:
        return f"phase is {row.phase!r}"
    times = [row.start_s, *(time for time, _ in row.chunks), row.end_s]
    if not all(isinstance(time, int | float) and math.isfinite(time) for time in [row.scheduled_s, *times]):
        return "a time is no number"
    if times != sorted(times):
        return "its times are not in order"
    if row.ok and row.first_token_s is None:
        return "it is complete but has no first token"
    if row.first_token_s != (row.chunks[0][0] if row.chunks else None):
        return "first_token_s is not the first chunk's arrival"
    return None
