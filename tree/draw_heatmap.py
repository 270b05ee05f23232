"""Where in the tree the budget goes, and where it pays: counts over many rounds, by depth and sibling rank."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .draw import DrawnRound
from .draw_counts import NodeCounts

CELL = 0.42  # inches


def heatmap_figure(rounds: Sequence[DrawnRound], title: str) -> Figure:
    """Two maps, depth down and rank among siblings across: nodes drafted a round, and how many of them the
    target took.

    Raises ValueError if no round drafted anything.
    """
    counts = NodeCounts.of(rounds)
    depths, ranks = counts.drafted.shape
    if not counts.drafted.any():
        raise ValueError("no round drafted anything, so there is nothing to map")
    each = max(ranks * CELL, 1.8)
    width, height = 2 * each + 1.45, max(depths * CELL, 1.2) + 1.25
    figure = Figure(figsize=(width, height), facecolor="white")
    figure.text(0.12 / width, 1 - 0.18 / height, title, size=9, weight="bold", va="center", parse_math=False)
    panels = (
        (
            "nodes drafted a round",
            np.where(counts.drafted, counts.drafted / counts.rounds, np.nan),
            "Blues",
            None,
        ),
        ("share of them accepted", counts.acceptance, "Greens", 1.0),
    )
    for place, (name, values, colours, top) in enumerate(panels):
        x = (0.55 + place * (each + 0.75)) / width
        axes = figure.add_axes((x, 0.55 / height, each / width, (height - 1.25) / height))
        _map(axes, values, colours, top)
        axes.set_title(name, size=9)
        axes.set_xlabel("rank among siblings (1: most probable)", size=8)
        axes.set_ylabel("depth", size=8)
    return figure


def _map(axes: Axes, values: np.ndarray, colours: str, top: float | None) -> None:
    top = top or float(np.nanmax(values))
    depths, ranks = values.shape
    axes.imshow(values, cmap=colours, vmin=0, vmax=top, aspect="auto")
    axes.set_xticks(range(ranks), [str(rank + 1) for rank in range(ranks)], size=8)
    axes.set_yticks(range(depths), [str(depth + 1) for depth in range(depths)], size=8)
    axes.spines[:].set_visible(False)
    for (depth, rank), value in np.ndenumerate(values):
        if not np.isnan(value):
            ink = "white" if value > 0.6 * top else "#1c2b3a"
            axes.text(rank, depth, _short(value), ha="center", va="center", size=7, color=ink)


def _short(value: float) -> str:
    """Two or three characters: the cells are small."""
    if value < 0.005:
        return "0" if value == 0 else "<.01"
    return f"{value:.2f}".removeprefix("0") if value < 1 else f"{value:.1f}"
