"""The pictures of `jetspec quality`, from its raw results. Needs matplotlib: import it where one is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from . import paper
from .drafters.quality.rows import Measured
from .drafters.quality.summary import EXTREME, FAITHFUL, PAPERS_DRAFTED, rank1_gaps

COLOURS = ("#1f6fb2", "#c9720c", "#2a8f5b", "#b03a4e", "#5b5f97", "#8a6d3b", "#3b8a8a", "#7a7f85")
PAPER = "#7b4a91"
BINS = 30
SIZE = (5.2, 3.6)  # inches of a panel


@dataclass(frozen=True)
class Panel:
    name: str
    title: str
    draw: Callable[[Axes, Measured], None]


def panels(measured: Measured) -> list[Panel]:
    found = [
        Panel("ecdf", "gap of the likeliest block: share of rounds below", _ecdf),
        Panel("histogram", "gap of the likeliest block: rounds", _histogram),
        Panel("joints", "all branches: what the target thinks of what the draft thinks", _joints),
        Panel("accepted", "tokens of a round, bonus included", _accepted),
    ]
    return [*found, Panel("cost", "cost of a drafted token", _cost)] if measured.cost else found


def figure(measured: Measured) -> Figure:
    """All panels in one picture."""
    shown = panels(measured)
    rows = ceil(len(shown) / 2)
    drawn = Figure(figsize=(2 * SIZE[0], rows * SIZE[1]), layout="constrained", facecolor="white")
    places = drawn.subplots(rows, 2, squeeze=False).flatten()
    for panel, axes in zip(shown, places, strict=False):
        _fill(panel, axes, measured)
    for axes in places[len(shown) :]:
        axes.axis("off")
    return drawn


def panel_figure(panel: Panel, measured: Measured) -> Figure:
    drawn = Figure(figsize=SIZE, layout="constrained", facecolor="white")
    _fill(panel, drawn.subplots(), measured)
    return drawn


def _fill(panel: Panel, axes: Axes, measured: Measured) -> None:
    panel.draw(axes, measured)
    axes.set_title(panel.title, size=9)
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.2)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7, handlelength=3)


def _colours(measured: Measured) -> dict[str, str]:
    return {head: COLOURS[i % len(COLOURS)] for i, head in enumerate(measured.heads)}


def _by_token(measured: Measured, head: str) -> list[float]:
    drafted = measured.heads[head].drafted
    return [gap / drafted for gap in rank1_gaps(measured, head)]


def _thresholds(axes: Axes) -> None:
    for value, name in ((FAITHFUL, "faithful below"), (EXTREME, "extreme from")):
        place = value / PAPERS_DRAFTED
        axes.axvline(place, color=PAPER, lw=0.8, ls="--")
        axes.annotate(
            f"{name} {value:g}/{PAPERS_DRAFTED}",
            (place, 1),
            xycoords=("data", "axes fraction"),
            xytext=(2, -2),
            textcoords="offset points",
            size=6,
            color=PAPER,
            rotation=90,
            va="top",
        )
    axes.set_xlabel("draft joint − target joint, nats a drafted token", size=8)


def _ecdf(axes: Axes, measured: Measured) -> None:
    for head, colour in _colours(measured).items():
        axes.ecdf(_by_token(measured, head), color=colour, label=head)
    axes.set_ylabel("share of rounds", size=8)
    _thresholds(axes)


def _histogram(axes: Axes, measured: Measured) -> None:
    values = {head: _by_token(measured, head) for head in measured.heads}
    every = [value for each in values.values() for value in each]
    limits = (min(every), max(every))
    for head, colour in _colours(measured).items():
        axes.hist(values[head], bins=BINS, range=limits, histtype="step", color=colour, label=head)
    axes.set_ylabel("rounds", size=8)
    _thresholds(axes)


def _joints(axes: Axes, measured: Measured) -> None:
    lowest = 0.0
    for head, colour in _colours(measured).items():
        for first, how in (
            (False, {"alpha": 0.25, "s": 5, "lw": 0}),
            (True, {"s": 9, "lw": 0, "label": head}),
        ):
            branches = [
                branch
                for each in measured.rounds
                for rank, branch in enumerate(each.drafts[head].branches)
                if (rank == 0) == first
            ]
            x, y = [b.target_joint for b in branches], [b.draft_joint for b in branches]
            axes.scatter(x, y, color=colour, **how)
            lowest = min([lowest, *y])
    axes.plot([lowest, 0], [lowest, 0], color="black", lw=0.7, ls=":")
    axes.set_xlabel("target joint, nats (small dots: ranks 2 to 5; dotted: equal)", size=8)
    axes.set_ylabel("draft joint, nats", size=8)


def _accepted(axes: Axes, measured: Measured) -> None:
    for head, colour in _colours(measured).items():
        drafts = [each.drafts[head] for each in measured.rounds]
        lengths = {
            "likeliest block": [draft.branches[0].accepted + 1 for draft in drafts],
            f"{measured.budget} nodes": [draft.tree_accepted + 1 for draft in drafts],
        }
        places = range(1, measured.heads[head].drafted + 2)
        for (name, found), dashes in zip(lengths.items(), ("--", "-"), strict=True):
            shares = [found.count(place) / len(found) for place in places]
            axes.plot(places, shares, color=colour, ls=dashes, marker="o", ms=3, label=f"{head}, {name}")
    axes.set_xlabel("tokens", size=8)
    axes.set_ylabel("share of rounds", size=8)
    axes.set_ylim(bottom=0)


def _cost(axes: Axes, measured: Measured) -> None:
    contexts = sorted({row.context for row in measured.cost})
    for head, colour in _colours(measured).items():
        for number, context in enumerate(contexts):
            rows = [row for row in measured.cost if (row.head, row.context) == (head, context)]
            axes.plot(
                [row.drafted for row in rows],
                [row.relative * 100 for row in rows],
                color=colour,
                alpha=(number + 1) / len(contexts),
                marker="o",
                ms=3,
                label=f"{head}, L = {context}" if context in (contexts[0], contexts[-1]) else None,
            )
    values = paper.DRAFT_COST
    axes.plot(
        list(values),
        [c * 100 for c in values.values()],
        color=PAPER,
        ls="",
        marker="s",
        ms=4,
        label="paper, H200 NVL",
    )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    ticks = sorted({*values, *(row.drafted for row in measured.cost)})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("drafted tokens N", size=8)
    axes.set_ylabel("c: % of a target pass", size=8)
