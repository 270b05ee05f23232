"""The figures as PNG files, drawn by matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from .report_shapes import CEILING, Figure, Series

MARKERS = {
    "circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "cross": "P", "x": "X", "star": "*",
    "pentagon": "p",
}  # fmt: skip
MADE_FROM = "Description"  # of the PNG: which summary it was drawn from


def draw(figure: Figure, file: Path, made_from: str) -> None:
    """Write `file`. `made_from`, the summary's SHA-256, is kept in it, so that the audit can tell."""
    canvas, axes = pyplot.subplots(figsize=(6.4, 4.4), layout="constrained")
    shown = [series for series in figure.series if series.y]
    if figure.kind == "line":
        _lines(axes, figure, shown)
    else:
        _bars(axes, figure, shown)
    axes.set_title(figure.title)
    titles = (figure.x_title, figure.y_title)
    across, up = reversed(titles) if figure.kind == "rows" else titles
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if figure.level is not None:
        axes.axhline(figure.level, color="#888888", linestyle=":", linewidth=1)
    if len(shown) > 1:
        canvas.legend(loc="outside lower center", ncols=min(3, len(shown)), frameon=False, fontsize=9)
    canvas.savefig(file, dpi=110, metadata={MADE_FROM: made_from})
    pyplot.close(canvas)


def _lines(axes: Axes, figure: Figure, shown: list[Series]) -> None:
    for series in shown:
        error: Any = None
        if series.low is not None and series.high is not None:
            below = [y - low for y, low in zip(series.y, series.low, strict=True)]
            above = [high - y for y, high in zip(series.y, series.high, strict=True)]
            error = [below, above]
        axes.errorbar(
            series.x, series.y, yerr=error, label=series.name, color=series.colour,
            marker=MARKERS[series.shape], markersize=5, linewidth=1.6, elinewidth=0.8, capsize=2,
        )  # fmt: skip
    if figure.x_is_load:
        loads = sorted({x for series in shown for x in series.x})
        axes.set_xscale("log")
        axes.set_xticks(loads, [f"{x:g}" for x in loads])
        axes.xaxis.set_minor_locator(NullLocator())
    if figure.y_ticks:
        axes.set_yscale("log")
        axes.set_yticks(figure.y_ticks, [f"{tick:g}" for tick in figure.y_ticks])
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_ylim(figure.y_ticks[0], figure.y_ticks[-1])
    else:
        axes.set_ylim(bottom=0)


def _bars(axes: Axes, figure: Figure, shown: list[Series]) -> None:
    if figure.kind == "rows":
        axes.invert_yaxis()  # the first server on top
    base = [0.0] * len(shown[0].y)
    for series in shown:
        if figure.kind == "rows":
            bars = axes.barh(series.x, series.y, left=base, label=series.name, color=series.colour)
        else:
            bars = axes.bar(series.x, series.y, bottom=base, label=series.name, color=series.colour)
        base = [below + y for below, y in zip(base, series.y, strict=True)]
        if figure.marked is not None:
            bars[figure.marked].set_color(CEILING)
