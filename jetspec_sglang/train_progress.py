"""Progress of the training stages: bars with the time left on a terminal, lines elsewhere."""

from __future__ import annotations

from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    TimeElapsedColumn(),
    TextColumn("left"),
    TimeRemainingColumn(elapsed_when_finished=True),
)


class Bar:
    """`total` units of work of a stage."""

    def __init__(self, console: Console, stage: str, total: int, unit: str) -> None:
        self.console, self.stage, self.total, self.unit = console, stage, total, unit
        columns = (
            *COLUMNS[:2],
            MofNCompleteColumn(),
            TextColumn(unit),
            *COLUMNS[2:],
            TextColumn("{task.fields[note]}"),
        )
        self.progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self.task = self.progress.add_task(stage, total=total, note="")

    def show(self, done: int, note: str) -> None:
        self.progress.update(self.task, completed=done, note=note)
        if not self.console.is_terminal:
            line = f"{self.stage}: {done:,} of {self.total:,} {self.unit}"
            self.console.print(f"{line}, {note}" if note else line, highlight=False)

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.progress.stop()


class FitBar:
    """Records of `fit` as they come: the share of the budget that is used, and the last numbers."""

    def __init__(self, console: Console) -> None:
        self.console = console
        columns = (*COLUMNS, TextColumn("{task.fields[note]}"))
        self.progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self.task = self.progress.add_task("fit", total=1.0, note="")

    def show(self, record: dict[str, Any]) -> None:
        note = describe(record)
        self.progress.update(self.task, completed=record["share"], note=note)
        if "heldout" in record or not self.console.is_terminal:  # those stay on the screen above the bar
            self.progress.console.print(f"fit {record['share']:.0%}: {note}", highlight=False)

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.progress.stop()


def describe(record: dict[str, Any]) -> str:
    """A record of the metrics in one line."""
    if "heldout" in record:
        held = record["heldout"]
        return (
            f"step {record['step']}, held-out τ {held['tau_chain']:.2f} chain, {held['tau_tree16']:.2f} at 16 nodes, "
            f"{held['tau_tree64']:.2f} at 64"
        )
    return (
        f"step {record['step']}, loss {record['loss']:.3f}, {record['anchors_per_s']:,.0f} anchors a second"
    )
