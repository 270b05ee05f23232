"""What a figure of the report is, apart from how it is drawn. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

# Okabe and Ito's palette, which colour-blind readers can tell apart; shapes for those who print in grey.
COLOURS = ("#555555", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
SHAPES = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "pentagon")
# Dark to light: shares that add up, such as stages and widths.
RAMP = (
    "#08306b",
    "#2171b5",
    "#6baed6",
    "#c6dbef",
    "#fdd0a2",
    "#fd8d3c",
    "#d94801",
    "#7f2704",
    "#525252",
    "#bdbdbd",
)
CEILING = "#b00020"


@dataclass(frozen=True)
class Series:
    """One line or one set of bars. `low` and `high` are the range over repetitions; `hover` a text a point."""

    name: str
    colour: str
    shape: str
    x: list[Any]
    y: list[float]
    low: list[float] | None = None
    high: list[float] | None = None
    hover: list[str] | None = None


@dataclass(frozen=True)
class Figure:
    """`x` values are loads on a log scale, other numbers, or texts. `level` is a line between good and bad.

    A `stack` adds its series up; `rows` does so from left to right, so that the texts have room.
    """

    id: str
    title: str
    x_title: str
    y_title: str
    series: list[Series]
    kind: Literal["line", "bar", "stack", "rows"] = "line"
    y_ticks: list[float] | None = None  # of a log scale
    level: float | None = None
    marked: int | None = None  # number of the bar to mark
    x_is_load: bool = True


@dataclass(frozen=True)
class Section:
    title: str
    text: str
    figures: list[Figure]
    points: tuple[str, ...] = ()


def styles(summary: dict[str, Any]) -> dict[str, tuple[str, str, str]]:
    """Label, colour and shape of each server."""
    return {
        name: (server["label"], COLOURS[i % len(COLOURS)], SHAPES[i % len(SHAPES)])
        for i, (name, server) in enumerate(summary["servers"].items())
    }


def log_ticks(values: Sequence[float]) -> list[float] | None:
    """1, 2 and 5 times powers of ten around `values`; None if a linear scale shows them better, or must."""
    if not values or min(values) <= 0 or max(values) < 10 * min(values):
        return None
    powers = range(math.floor(math.log10(min(values))) - 1, math.ceil(math.log10(max(values))) + 1)
    ticks = [float(f"{step}e{power}") for power in powers for step in (1, 2, 5)]
    first = max(i for i, tick in enumerate(ticks) if tick <= min(values))
    last = min(i for i, tick in enumerate(ticks) if tick >= max(values))
    return ticks[first : last + 1]
