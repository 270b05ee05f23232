"""What the report shows, apart from how it is drawn: `plots` makes PNGs of it, `report_plotly` the page's plots.

Standard library only: the audit makes the same figures again from the raw files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
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

RATE, CONCURRENCY = "request rate (requests/s)", "requests in flight"


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


def sections(summary: dict[str, Any]) -> list[Section]:
    """All figures that the study has data for."""
    measured = {point["kind"] for point in summary["points"]}
    offered = "rate" if "rate" in measured else "concurrency"  # latency is about a load from outside
    made = [
        Section(
            "Latency",
            "Counted from when a request was due, so waiting is in it. Each point is the median of the repetitions, "
            "the bar their range.",
            [
                over_load(summary, f"{name}_s.{p}.value", f"{title}, {p}", "seconds", offered, log_y=True)
                for name, title in (
                    ("ttft", "Time to first token"),
                    ("tpot", "Time per output token"),
                    ("e2e", "Whole answer"),
                )
                for p in ("p50", "p90", "p99")
            ],
        ),
        Section(
            "Goodput and throughput",
            "Goodput counts answers that met every bound of the SLO; attainment is their share of the requests sent, "
            "so that failures count against a server.",
            [
                over_load(summary, path, title, unit, offered)
                for path, title, unit in (
                    ("goodput_rps.value", "Goodput", "good answers/s"),
                    ("attainment.value", "Attainment of the SLO", "share of requests"),
                    ("tok_s", "Throughput", "tokens/s"),
                )
            ],
        ),
        Section(
            "Throughput against latency",
            "Up and to the right is better. A line follows one server from low to high load.",
            [pareto(summary, kind) for kind in ("rate", "concurrency")],
        ),
        Section(
            "Speed-up",
            f"Relative to {summary['servers'][summary['baseline']]['label']}, each repetition to its own; above 1 "
            "is faster.",
            [speedup(summary, kind) for kind in ("concurrency", "rate")],
            crossovers(summary),
        ),
        Section(
            "Accepted drafts",
            "Rounds by drafts accepted (the target's own token not counted). The red bar is a whole block: more "
            "cannot be accepted, so a spike there means that the block limits, not the budget.",
            [
                *histograms(summary),
                *(
                    over_load(summary, "tau.value", "Accept length τ", "tokens/round", kind)
                    for kind in ("rate", "concurrency")
                ),
            ],
        ),
        Section(
            "Where a round's time goes",
            "Mean over all cells, measured inside the server. On an accelerator these are the host's times.",
            [stages(summary)],
        ),
        Section(
            "Budget against load",
            "Nodes of the tree that a request gets in a round, the root included; 1 is plain decoding.",
            [
                *(
                    over_load(summary, "nodes_per_round.value", "Nodes verified", "nodes/round", kind)
                    for kind in ("rate", "concurrency")
                ),
                *widths(summary),
            ],
        ),
    ]
    drawn = [replace(s, figures=[f for f in s.figures if any(line.y for line in f.series)]) for s in made]
    return [section for section in drawn if section.figures]


def styles(summary: dict[str, Any]) -> dict[str, tuple[str, str, str]]:
    """Label, colour and shape of each server."""
    return {
        name: (server["label"], COLOURS[i % len(COLOURS)], SHAPES[i % len(SHAPES)])
        for i, (name, server) in enumerate(summary["servers"].items())
    }


def over_load(
    summary: dict[str, Any], path: str, title: str, unit: str, kind: str, *, log_y: bool = False
) -> Figure:
    """One number of the points against the load."""
    found = []
    for server, (label, colour, shape) in styles(summary).items():
        points = [
            (point, point["numbers"][path])
            for point in summary["points"]
            if point["server"] == server and point["kind"] == kind and point["numbers"][path] is not None
        ]
        found.append(
            Series(
                label, colour, shape,
                x=[point["load"] for point, _ in points],
                y=[value["median"] for _, value in points],
                low=[value["low"] for _, value in points],
                high=[value["high"] for _, value in points],
                hover=[_hover(label, point, value, unit) for point, value in points],
            )
        )  # fmt: skip
    ticks = (
        log_ticks([y for line in found for y in (*(line.low or ()), *(line.high or ()))]) if log_y else None
    )
    return Figure(f"{kind}-{_id(path)}", title, _load_title(kind), unit, found, y_ticks=ticks)


def log_ticks(values: Sequence[float]) -> list[float] | None:
    """1, 2 and 5 times powers of ten around `values`; None if a linear scale shows them better, or must."""
    if not values or min(values) <= 0 or max(values) < 10 * min(values):
        return None
    powers = range(math.floor(math.log10(min(values))) - 1, math.ceil(math.log10(max(values))) + 1)
    ticks = [float(f"{step}e{power}") for power in powers for step in (1, 2, 5)]
    first = max(i for i, tick in enumerate(ticks) if tick <= min(values))
    last = min(i for i, tick in enumerate(ticks) if tick >= max(values))
    return ticks[first : last + 1]


def pareto(summary: dict[str, Any], kind: str) -> Figure:
    """tok/s that one user sees against tok/s of the whole server."""
    found = []
    for server, (label, colour, shape) in styles(summary).items():
        points = [
            (point, point["numbers"]["tok_s_user.p50.value"], point["numbers"]["tok_s"])
            for point in summary["points"]
            if point["server"] == server and point["kind"] == kind
        ]
        points = [(point, user, total) for point, user, total in points if user and total]
        found.append(
            Series(
                label, colour, shape,
                x=[user["median"] for _, user, _ in points],
                y=[total["median"] for _, _, total in points],
                hover=[f"{label}, {_load(point)}" for point, _, _ in points],
            )
        )  # fmt: skip
    words = "request rates" if kind == "rate" else "requests in flight"
    return Figure(
        f"{kind}-pareto", f"By {words}", "tokens/s of one user, median", "tokens/s in total", found,
        x_is_load=False,
    )  # fmt: skip


def speedup(summary: dict[str, Any], kind: str) -> Figure:
    found = []
    for server, (label, colour, shape) in styles(summary).items():
        rows = [
            row
            for row in summary["speedups"]
            if row["server"] == server and row["kind"] == kind and row["speedup"] is not None
        ]
        found.append(
            Series(
                label, colour, shape,
                x=[row["load"] for row in rows],
                y=[row["speedup"]["median"] for row in rows],
                low=[row["speedup"]["low"] for row in rows],
                high=[row["speedup"]["high"] for row in rows],
                hover=[_hover(label, row, row["speedup"], "times the baseline") for row in rows],
            )
        )  # fmt: skip
    title = "Throughput over the baseline's" if kind == "concurrency" else "Baseline's median TPOT over TPOT"
    return Figure(f"{kind}-speedup", title, _load_title(kind), "speed-up", found, level=1.0)


def crossovers(summary: dict[str, Any]) -> tuple[str, ...]:
    """Where each server crosses the baseline, in words."""
    words = []
    for server, (label, _, _) in styles(summary).items():
        rows = [
            row
            for row in summary["speedups"]
            if row["server"] == server and row["kind"] == "concurrency" and row["speedup"] is not None
        ]
        if rows:
            words.append(f"{label}: {crossover([(row['load'], row['speedup']['median']) for row in rows])}.")
    return tuple(words)


def crossover(speedups: Sequence[tuple[float, float]]) -> str:
    """From `(load, speed-up)` in order of the load."""
    faster = [load for load, ratio in speedups if ratio > 1]
    slower = [load for load, ratio in speedups if ratio <= 1]
    if not slower:
        return f"faster at all {len(faster)} concurrencies measured"
    if not faster:
        return f"not faster at any of {len(slower)} concurrencies measured"
    if max(faster) < min(slower):
        return f"faster up to {max(faster):g} in flight, not from {min(slower):g} on"
    return f"faster at {_listed(faster)} in flight, not at {_listed(slower)}"


def histograms(summary: dict[str, Any]) -> list[Figure]:
    """One a server that speculates."""
    made = []
    for server, (label, colour, shape) in styles(summary).items():
        rounds = summary["rounds"][server]
        if not rounds or not rounds["histogram"]:
            continue
        ceiling, counts = rounds["ceiling"], rounds["histogram"]
        counts = [*counts, *[0] * (ceiling + 1 - len(counts))] if ceiling else counts
        total = sum(counts)
        bars = Series(
            label, colour, shape,
            x=[str(k) for k in range(len(counts))],
            y=[float(f"{count / total:.6g}") for count in counts],
            hover=[f"{label}: {count} of {total} rounds accepted {k}" for k, count in enumerate(counts)],
        )  # fmt: skip
        made.append(
            Figure(
                f"histogram-{server}", label, "drafts accepted in a round", "share of rounds", [bars], "bar",
                marked=ceiling, x_is_load=False,
            )
        )  # fmt: skip
    return made


def stages(summary: dict[str, Any]) -> Figure:
    """Milliseconds of each stage in a mean round, a bar a server."""
    rows = [
        (styles(summary)[server][0], rounds["stage_ms"])
        for server, rounds in summary["rounds"].items()
        if rounds and rounds["stage_ms"]
    ]
    names = list(rows[0][1]) if rows else []
    layers = [
        Series(
            stage, RAMP[i], "square",
            x=[label for label, _ in rows],
            y=[ms[stage] for _, ms in rows],
            hover=[f"{label}, {stage}: {ms[stage]:g} ms a round" for label, ms in rows],
        )
        for i, stage in enumerate(names)
    ]  # fmt: skip
    return Figure("stages", "Stages of a round", "", "ms a round", layers, "rows", x_is_load=False)


def widths(summary: dict[str, Any]) -> list[Figure]:
    """Shares of rounds by the nodes that an adaptive budget chose, a bar a load."""
    made = []
    for server, (label, _, _) in styles(summary).items():
        chosen = (summary["rounds"][server] or {}).get("widths")
        if not chosen:
            continue
        nodes = sorted({n for counts in chosen.values() for n in counts}, key=int)
        layers = [
            Series(
                f"{n} node{'s' if n != '1' else ''}", RAMP[i % len(RAMP)], "square",
                x=[_short_load(load) for load in chosen],
                y=[float(f"{counts.get(n, 0) / sum(counts.values()):.6g}") for counts in chosen.values()],
                hover=[
                    f"{load}: {counts.get(n, 0)} of {sum(counts.values())} rounds had {n} nodes"
                    for load, counts in chosen.items()
                ],
            )
            for i, n in enumerate(nodes)
        ]  # fmt: skip
        made.append(
            Figure(
                f"widths-{server}", f"{label}: nodes chosen", "requests/s, then requests in flight (c)",
                "share of rounds", layers, "stack", x_is_load=False,
            )
        )  # fmt: skip
    return made


def _hover(label: str, point: dict[str, Any], value: dict[str, float], unit: str) -> str:
    span = "" if value["low"] == value["high"] else f" ({value['low']:.4g} to {value['high']:.4g})"
    return f"{label}, {_load(point)}: {value['median']:.4g}{span} {unit}"


def _load(point: dict[str, Any]) -> str:
    return f"{point['load']:g} requests/s" if point["kind"] == "rate" else f"{point['load']:g} in flight"


def _short_load(name: str) -> str:
    kind, _, value = name.partition("-")
    return value if kind == "rate" else f"c{value}"


def _load_title(kind: str) -> str:
    return RATE if kind == "rate" else CONCURRENCY


def _id(path: str) -> str:
    return path.removesuffix(".value").replace(".", "-").replace("_", "-")


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
