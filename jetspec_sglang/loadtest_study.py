"""`jetspec loadtest sweep | report | audit`: a study from one config file, its report, and its check."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from .builtin.head import BuiltinHeadError, builtin_head
from .builtin.target import BuiltinTargetError, builtin_target
from .compare import CompareError, ending_cleanly, terminal
from .loadtest.arrivals import ScheduleError
from .loadtest.report_files import report_folder
from .loadtest.report_summary import StudyError
from .loadtest.runner import Progress
from .loadtest.sweep import sweep as run_sweep
from .loadtest.sweep_config import read_config
from .loadtest.sweep_plan import Cell
from .loadtest.sweep_servers import SweepError
from .loadtest.workloads import WorkloadError
from .machine import describe
from .serving import Server, stop_all

# Words of launch arguments that stand for the built-in model, so that a config file names no folder of a machine.
BUILTIN = {"builtin:target": builtin_target, "builtin:head": builtin_head}


class SGLang:
    """Starts SGLang servers for a sweep."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def make(self, flags: Sequence[str]) -> Server:
        return Server([self._folder(word) if word in BUILTIN else word for word in flags])

    def stop(self, servers: Sequence[Server]) -> None:
        stop_all(servers)

    def _folder(self, name: str) -> str:
        folder = str(BUILTIN[name]())
        self.names[folder] = name
        return folder


class Lines:
    """Tells what a sweep does; in a terminal the last line is a live one."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("")
        self._status.start()
        self._began, self._measured = time.monotonic(), 0
        self._head = ""

    def starting(self, names: str, seconds: float) -> None:
        self._status.update(f"starting {names}: {seconds:.0f} s")

    def cell(self, cell: Cell, number: int, total: int) -> None:
        left = ""
        if self._measured:
            each = (time.monotonic() - self._began) / self._measured
            left = f", about {each * (total - number + 1) / 60:.0f} min left"
        self._measured += 1
        self._head = f"cell {number} of {total}{left}: {cell.name}"
        if not self._console.is_terminal:
            self._console.print(self._head, highlight=False)

    def progress(self, progress: Progress) -> None:
        self._status.update(
            f"{self._head}: {progress.completed} answers, {progress.failed} failed, "
            f"{min(progress.at_s, progress.end_s):.0f} of {progress.end_s:.0f} s"
        )

    def event(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)

    def end(self) -> None:
        self._status.stop()


Folder = Annotated[
    Path, typer.Argument(metavar="DIR", help="Folder of a sweep.", exists=True, file_okay=False)
]


def sweep(
    config_file: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="YAML or TOML; see examples/loadtest/.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for raw files; a half-done study in it goes on.")],
) -> None:
    """Launch servers, measure them at all loads in turn, stop them. Run it again to go on after a stop."""
    console = terminal()
    with ending_cleanly("jetspec loadtest sweep"):
        try:
            config = read_config(config_file)
            console.print(
                f"{len(config.cells())} cells, {config.seconds() / 60:.0f} minutes of load at least.",
                highlight=False,
            )
            lines = Lines(console)
            try:
                run_sweep(config, out, SGLang(), describe(), lines)
            finally:
                lines.end()
        except (SweepError, ScheduleError, WorkloadError, BuiltinHeadError, BuiltinTargetError) as error:
            raise CompareError(str(error)) from error
    console.print(
        f"All cells are measured. Next: jetspec loadtest report {out}", highlight=False, soft_wrap=True
    )


def report(folder: Folder) -> None:
    """Write report.html, summary.json, CSV and PNG files into DIR/report from the raw files of a sweep."""
    from .loadtest.report import write_report

    try:
        page = write_report(folder)
    except (StudyError, OSError) as error:
        print(f"jetspec loadtest report: {error}", file=sys.stderr)
        raise typer.Exit(1) from error
    terminal().print(
        f"Wrote {page} and, beside it, its numbers and figures.", highlight=False, soft_wrap=True
    )


def audit(folder: Folder) -> None:
    """Compute every published number of DIR/report again from the raw files. Status 1 if one differs.

    Needs nothing but Python: python loadtest/audit.py DIR does the same.
    """
    from .loadtest.audit import main

    if not report_folder(folder).is_dir():
        print(
            f"jetspec loadtest audit: {folder} has no report; jetspec loadtest report writes one.",
            file=sys.stderr,
        )
        raise typer.Exit(1)
    raise typer.Exit(main([str(folder)]))
