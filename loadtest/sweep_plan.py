"""The cells of a study and the order they are measured in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Load:
    """What is offered: `rate` in requests a second (open loop), or `concurrency` in requests in flight."""

    kind: Literal["rate", "concurrency"]
    value: float

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.value:g}"


@dataclass(frozen=True)
class Cell:
    """One server under one load, once. `repetition` counts from 1."""

    server: str
    load: Load
    repetition: int

    @property
    def name(self) -> str:
        """Its folder below ``cells/``."""
        return f"{self.server}/{self.load.name}/{self.repetition}"


def ordered(
    servers: Sequence[str], loads: Sequence[Load], repetitions: int, *, one_at_a_time: bool = False
) -> list[Cell]:
    """All cells, so that a drift of the machine falls on all servers alike.

    The servers meet one load side by side, each load with another one first. Every second repetition runs
    backwards: over each pair of repetitions all cells have the same mean place in time, so a linear drift
    cancels out. `one_at_a_time` keeps a server's cells of one repetition together instead, for servers that
    don't fit in memory side by side; forth and back cancels a drift there, too.
    """
    cells: list[Cell] = []
    for repetition in range(1, repetitions + 1):
        if one_at_a_time:
            once = [Cell(server, load, repetition) for server in servers for load in loads]
        else:
            once = [
                Cell(server, load, repetition)
                for turn, load in enumerate(loads)
                for server in rotated(servers, turn)
            ]
        cells += once if repetition % 2 else once[::-1]
    return cells


def rotated(names: Sequence[str], turn: int) -> list[str]:
    """`names` beginning with number `turn`, round and round."""
    first = turn % len(names)
    return [*names[first:], *names[:first]]
