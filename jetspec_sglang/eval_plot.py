"""The picture of `jetspec eval`: τ and speed-up against budget and against α, the paper's numbers below ours.

Needs matplotlib: import it where a picture is asked for.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from . import paper
from .eval_grid import CHAIN
from .eval_rows import ALL

COLOURS = {CHAIN: "#7a7f85", "eager": "#c9720c", "optimal": "#1f6fb2"}
PAPER = "#7b4a91"
DASHES = ("-", "--", ":", "-.", (0, (4, 1, 1, 1, 1, 1)))
MEASURES = {"tau": "accept length τ", "speedup": "speed-up over plain decoding"}
Point = tuple[float, float]


def figure(run: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Figure:
    """`run` and `rows` as in the JSON of `jetspec eval`; only the rows over all domains are drawn."""
    total = [row for row in rows if row["domain"] == ALL and row["expansion"] != "none"]
    alphas = sorted({value for row in total if (value := alpha(row)) is not None})
    ablated = [row for row in total if alpha(row) is not None] if len(alphas) > 1 else []
    panels = 4 if ablated else 2
    drawn = Figure(figsize=(3.6 * panels + 0.6, 7.6), layout="constrained", facecolor="white")
    (ours,), (papers,) = drawn.subfigures(2, 1, squeeze=False, height_ratios=(1.06, 1))
    ours.suptitle(title(run), size=10, weight="bold")
    papers.suptitle(
        "for comparison of shapes, not heights — the JetSpec paper's own numbers (arXiv 2606.18394)",
        size=10,
        color=PAPER,
    )
    papers.set_facecolor("#f6f2f8")
    upper, lower = ours.subplots(1, panels), papers.subplots(1, panels)
    for number, key in enumerate(MEASURES):
        _by_budget(upper[number], total, key)
        _papers_budget(lower[number], run["temperature"], key)
        if ablated:
            places = {
                value: place for place, value in enumerate(sorted({*alphas, *paper.SPEEDUP_OF_ALPHA, 1.0}))
            }
            _by_alpha(upper[2 + number], ablated, key, places)
            _papers_alpha(lower[2 + number], key, places)
    return drawn


def load_figure(run: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Throughput and speed-up by requests at once, of `eval_load.summarise`."""
    drawn = Figure(figsize=(8.4, 4.2), layout="constrained", facecolor="white")
    drawn.suptitle(title(run), size=9, weight="bold")
    concurrencies = sorted({row["concurrency"] for row in rows})
    methods = list(dict.fromkeys(row["method"] for row in rows))
    blues = colormaps["Blues"]
    for axes, key, name in zip(
        drawn.subplots(1, 2), ("tok_s", "speedup"), ("tokens a second", MEASURES["speedup"]), strict=True
    ):
        for number, method in enumerate(methods):
            points = {row["concurrency"]: row[key] for row in rows if row["method"] == method}
            budget = blues(0.35 + 0.6 * number / len(methods))
            colour = {"plain": "black", "adaptive": "#c0392b", "bandit": "#e67e22"}.get(method, budget)
            wide = 2.2 if method in ("adaptive", "bandit") else 1.2
            axes.plot(
                concurrencies,
                [points[c] for c in concurrencies],
                color=colour,
                lw=wide,
                marker="o",
                ms=4,
                label=method,
            )
        axes.set_xscale("log", base=2)
        axes.set_xticks(concurrencies, [str(c) for c in concurrencies])
        axes.set_xticks([], minor=True)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("requests at once", size=8)
        axes.set_ylabel(name, size=8)
        _frame(axes)
    drawn.axes[0].legend(fontsize=7)
    return drawn


def title(run: Mapping[str, Any]) -> str:
    machine = run["machine"]
    where = machine.get("gpu") or f"{machine['cores']} cores, {machine['processor']}"
    heads = ", ".join(f"{label} ({folder})" for label, folder in run["heads"].items())
    return (
        f"this run: {run['target']}, {heads}, {run['dtype']}, temperature {run['temperature']:g}, "
        f"{run['prompts']} prompts\n{where}"
    )


def alpha(row: Mapping[str, Any]) -> float | None:
    """Where a row stands between accum_logp (0) and entropy (infinity); None for other policies."""
    return {"accum_logp": 0.0, "entropy": inf}.get(row["scoring"], row["alpha"])


def by_budget(rows: Sequence[Mapping[str, Any]], key: str) -> dict[tuple[str, ...], list[Point]]:
    """Lines (drafter, expansion, scoring, acceptance) of points (budget, value). The entropy in a key moves
    along α, not along budgets: it has panels of its own."""
    lines: dict[tuple[str, ...], list[Point]] = {}
    for row in rows:
        if row["alpha"] is None and row["scoring"] != "entropy" and row[key] is not None:
            scoring = "" if row["scoring"] in ("none", "accum_logp") else row["scoring"]
            name = (row["drafter"], row["expansion"], scoring, row["acceptance"] or "")
            lines.setdefault(name, []).append((row["budget"], row[key]))
    return {name: sorted(points) for name, points in lines.items()}


def by_alpha(rows: Sequence[Mapping[str, Any]], key: str) -> dict[tuple[str, ...], list[Point]]:
    """Lines (drafter, expansion, budget, acceptance) of points (α, value), where there is more than one α."""
    lines: dict[tuple[str, ...], list[Point]] = {}
    for row in rows:
        place = alpha(row)
        if place is not None and row[key] is not None:
            name = (row["drafter"], row["expansion"], f"{row['budget']} nodes", row["acceptance"] or "")
            lines.setdefault(name, []).append((place, row[key]))
    return {name: sorted(points) for name, points in lines.items() if len(points) > 1}


def _by_budget(axes: Axes, rows: Sequence[Mapping[str, Any]], key: str) -> None:
    lines = by_budget(rows, key)
    _draw(axes, lines)
    if lines:
        axes.legend(fontsize=7)
    _budgets(axes, sorted({budget for points in lines.values() for budget, _ in points}), key)


def _by_alpha(axes: Axes, rows: Sequence[Mapping[str, Any]], key: str, places: Mapping[float, int]) -> None:
    lines = by_alpha(rows, key)
    _draw(axes, {name: [(places[a], value) for a, value in points] for name, points in lines.items()})
    _alphas(axes, places, key)
    if key == "speedup" and lines:  # the same lines are in the panel to the left
        axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))


def _draw(axes: Axes, lines: Mapping[tuple[str, ...], list[Point]]) -> None:
    """Colour: expansion. Dashes: what else tells lines apart. Labels name only that."""
    varying = [len(set(parts)) > 1 for parts in zip(*lines, strict=True)]
    others = list(dict.fromkeys((name[0], *name[2:]) for name in lines))
    for name, points in lines.items():
        shown = [name[1], *(part for n, part in enumerate(name) if varying[n] and n != 1)]
        dashes = DASHES[others.index((name[0], *name[2:])) % len(DASHES)]
        axes.plot(
            *zip(*points, strict=True),
            color=COLOURS.get(name[1], "black"),
            ls=dashes,
            marker="o",
            ms=4,
            label=" ".join(filter(None, shown)),
        )


def _papers_budget(axes: Axes, temperature: float, key: str) -> None:
    means = paper.means(temperature)
    if means is None:
        _only_text(axes, f"the paper has no numbers at temperature {temperature:g}")
        return
    column = ("speedup", "tau").index(key)
    cells = paper.JETSPEC[int(temperature)]
    for number in range(len(paper.BENCHMARKS)):
        values = [cells[budget][number][column] for budget in means]
        axes.plot(list(means), values, color=PAPER, alpha=0.25, lw=1)
    ends = [cells[max(means)][number][column] for number in range(len(paper.BENCHMARKS))]
    for benchmark, height in zip(paper.BENCHMARKS, apart(ends, 0.03 * max(ends)), strict=True):
        axes.text(max(means) * 1.04, height, benchmark, size=6, color=PAPER, va="center")
    average = [values[column] for values in means.values()]
    axes.plot(list(means), average, color=PAPER, marker="o", ms=4, label="JetSpec, mean of 7")
    axes.legend(fontsize=7)
    axes.set_title(f"{paper.MODEL}\nH100, temperature {temperature:g}", size=7)
    _budgets(axes, list(means), key)
    axes.set_xlim(min(means) * 0.9, max(means) * 1.6)


def _papers_alpha(axes: Axes, key: str, places: Mapping[float, int]) -> None:
    values = paper.SPEEDUP_OF_ALPHA if key == "speedup" else paper.TAU_OF_ALPHA
    axes.plot([places[a] for a in values], list(values.values()), color=PAPER, marker="o", ms=4, ls="")
    for a, value in values.items():
        axes.annotate(
            f"{value:g}", (places[a], value), size=7, xytext=(0, 6), textcoords="offset points", ha="center"
        )
    if key == "speedup":
        low, high = paper.SPEEDUP_UP_TO_ALPHA_1
        axes.fill_between(
            [places[0.0], places[1.0]], low, high, color=PAPER, alpha=0.3, lw=0, label="range up to α = 1"
        )
        axes.legend(fontsize=7, loc="lower left")
    else:
        axes.text(
            0.5,
            0.1,
            "no other α is reported with its τ",
            transform=axes.transAxes,
            size=7,
            ha="center",
            color=PAPER,
        )
    axes.set_title(f"{paper.MODEL}, 255 nodes\nappendix C (GPU not stated in our source)", size=7)
    _alphas(axes, places, key)
    axes.set_ylim(0, max(values.values()) * 1.15)


def apart(heights: Sequence[float], least: float) -> list[float]:
    """Heights for labels at `heights`, in the same order, moved up where they would be closer than `least`."""
    moved = list(heights)
    above = -inf
    for number in sorted(range(len(heights)), key=heights.__getitem__):
        above = moved[number] = max(heights[number], above + least)
    return moved


def _budgets(axes: Axes, budgets: Sequence[float], key: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(budgets, [f"{budget:g}" for budget in budgets])
    axes.set_xticks([], minor=True)
    _finish(axes, "budget: nodes of the tree, root included", key)


def _alphas(axes: Axes, places: Mapping[float, int], key: str) -> None:
    names = {0.0: "0\naccum_logp", inf: "∞\nentropy"}
    axes.set_xticks(list(places.values()), [names.get(a, f"{a:g}") for a in places])
    axes.set_xlim(-0.4, max(places.values()) + 0.4)
    _finish(axes, "weight α of the entropy in hybrid scoring", key)


def _finish(axes: Axes, x: str, key: str) -> None:
    axes.set_xlabel(x, size=8)
    axes.set_ylabel(MEASURES[key], size=8)
    axes.axhline(1, color="black", lw=0.6, ls=":")
    _frame(axes)


def _frame(axes: Axes) -> None:
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.2)
    axes.spines[["top", "right"]].set_visible(False)


def _only_text(axes: Axes, text: str) -> None:
    axes.axis("off")
    axes.text(0.5, 0.5, text, ha="center", va="center", size=8, color=PAPER)
