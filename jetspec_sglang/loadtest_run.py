"""`jetspec loadtest run`: one run against a server that is up, with a live line, and its metrics as a table."""

import inspect
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import reduce
from operator import or_
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .loadtest import runner
from .loadtest.arrivals import ScheduleError
from .loadtest.config import LoadConfig
from .loadtest.metrics import summarise
from .loadtest.records import Request, Run, read_requests
from .loadtest.workloads import WorkloadError

LATENCIES = {
    "ttft_s": "time to first token",
    "tpot_s": "time per output token",
    "itl_s": "between tokens",
    "chunk_gap_s": "between pieces of the stream",
    "e2e_s": "whole answer",
}

console = Console()


def run(out: Path | None, workers: int, **settings: Any) -> None:
    """Load a server that is up and show what its users see; the raw files are kept.

    Status 1: every request failed, or the run is invalid, because the generator was late or the run was cut short.
    Status 2: no run.
    """
    try:
        config = LoadConfig(**settings)
        folder = out or Path(f"loadtest-runs/{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
        with _live(config) as watch:
            done = runner.run(config, folder, workers=workers, watch=watch)
    except ValidationError as error:
        console.print("; ".join(map(_complaint, error.errors())), markup=False)
        raise typer.Exit(2) from error
    except (ScheduleError, WorkloadError, runner.RunError, OSError) as error:
        console.print(str(error), markup=False)
        raise typer.Exit(2) from error
    requests = read_requests(folder)
    summary = summarise(requests, done)
    console.print(_latencies(summary))
    for line in _lines(summary, config):
        console.print(line, highlight=False)
    console.print(f"Raw files: {folder}", highlight=False, soft_wrap=True)
    _verdict(done, requests)


def _complaint(problem: Any) -> str:
    """One problem of pydantic's, by the option's name."""
    text = problem["msg"].removeprefix("Value error, ")
    return f"--{problem['loc'][0].replace('_', '-')}: {text}" if problem["loc"] else text


def _option(name: str) -> inspect.Parameter:
    about = LoadConfig.model_fields[name]
    return _parameter(name, _plain(about.annotation), about.default, about.description or "")


def _parameter(name: str, kind: Any, default: Any, text: str) -> inspect.Parameter:
    annotation = Annotated[kind, typer.Option(help=text)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _plain(kind: Any) -> Any:
    """A field's type as typer takes it: without pydantic's bounds, which the model checks itself."""
    if get_origin(kind) is Annotated:
        return get_args(kind)[0]
    if get_origin(kind) in (Union, UnionType):
        return reduce(or_, map(_plain, get_args(kind)))
    if get_origin(kind) is Literal or isinstance(kind, type):
        return kind
    raise TypeError(f"no option can have the type {kind}")


# Typer reads options from a function's signature; this one is made from the model, so that both can't differ.
_PARAMETERS = [
    *map(_option, LoadConfig.model_fields),
    _parameter("out", Path | None, None, "folder of the raw files; loadtest-runs/TIME if not given"),
    _parameter("workers", int, 1, "processes that generate the load"),
]
run.__signature__ = inspect.Signature(_PARAMETERS)  # type: ignore[attr-defined]
run.__annotations__ = {parameter.name: parameter.annotation for parameter in _PARAMETERS}


@contextmanager
def _live(config: LoadConfig) -> Iterator[Any]:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting Locust", total=config.end_s)

        def watch(state: runner.Progress) -> None:
            if not state.completed + state.failed:
                return
            sent = "" if state.scheduled is None else f" of {state.scheduled}"
            ttft = "" if state.ttft_p50_s is None else f", TTFT p50 {1000 * state.ttft_p50_s:.0f} ms"
            text = f"{state.completed}{sent} answers, {state.failed} failed{ttft}"
            progress.update(task, completed=min(state.at_s, config.end_s), description=text)

        yield watch


def _latencies(summary: dict[str, Any]) -> Table:
    """Milliseconds, with the 95 % interval of the median."""
    table = Table(title="Latency in ms, from when a request was due", title_justify="left")
    table.add_column("")
    for heading in ("mean", "p50", "95 %", "p90", "p99"):
        table.add_column(heading, justify="right")
    for key, name in LATENCIES.items():
        if found := summary[key]:
            low, high = found["p50"]["ci"]
            mean, *cells = (_ms(found[column]["value"]) for column in ("mean", "p50", "p90", "p99"))
            table.add_row(name, mean, cells[0], f"{_ms(low)}–{_ms(high)}", *cells[1:])
    return table


def _lines(summary: dict[str, Any], config: LoadConfig) -> Iterator[str]:
    yield (
        f"{summary['sent']} requests in {summary['window_s']:g} s: {summary['completed']} complete, "
        f"{summary['failed']} failed. {summary['tok_s']:.1f} tok/s in all, "
        f"{summary['completed_rps']:.2f} answers/s."
    )
    if any((config.slo_ttft_s, config.slo_tpot_s, config.slo_e2e_s)) and summary["attainment"]:
        yield (
            f"Goodput {summary['goodput_rps']['value']:.2f} requests/s: "
            f"{100 * summary['attainment']['value']:.1f} % met every bound."
        )
    if summary["cached_share"]:
        yield f"{100 * summary['cached_share']['value']:.0f} % of prompt tokens were in the prefix cache."
    if summary["tau"]:
        text = f"τ {summary['tau']['value']:.2f}"
        if summary["nodes_per_round"]:
            nodes, wasted = summary["nodes_per_round"]["value"], summary["wasted_share"]["value"]
            text += f" at {nodes:.1f} nodes a round, {100 * wasted:.0f} % of them for nothing"
        yield text + "."


def _verdict(done: Run, requests: list[Request]) -> None:
    errors = [request.error for request in requests if request.error is not None]
    for text, count in Counter(errors).most_common(1):
        failed = f"{len(errors)} of {len(requests)} requests failed, those of the warm-up included"
        console.print(f"{failed}; {count} of them so: {text}", markup=False)
    if errors and len(errors) == len(requests):
        raise typer.Exit(1)
    if not done.valid:
        console.print("[red]This run is invalid:[/red]", *done.reasons)
        raise typer.Exit(1)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f}"
