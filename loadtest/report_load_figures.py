"""Figures against the load: any number of the points, throughput against latency, speed-up and its crossover."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .report_shapes import Figure, Series, log_ticks, styles

RATE, CONCURRENCY = "request rate (requests/s)", "requests in flight"


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


def _hover(label: str, point: dict[str, Any], value: dict[str, float], unit: str) -> str:
    span = "" if value["low"] == value["high"] else f" ({value['low']:.4g} to {value['high']:.4g})"
    return f"{label}, {_load(point)}: {value['median']:.4g}{span} {unit}"


def _load(point: dict[str, Any]) -> str:
    return f"{point['load']:g} requests/s" if point["kind"] == "rate" else f"{point['load']:g} in flight"


def _load_title(kind: str) -> str:
    return RATE if kind == "rate" else CONCURRENCY


def _id(path: str) -> str:
    return path.removesuffix(".value").replace(".", "-").replace("_", "-")


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
