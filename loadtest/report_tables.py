"""The report's tables, as rows of text: the page and the CSV files are made from them. Standard library only."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from .report_shapes import styles
from .report_summary import NUMBERS

Row = Sequence[str]


def point_table(summary: dict[str, Any], kind: str) -> list[Row]:
    """The page's main table: a row for each load and server, the head first."""
    speedups = {(r["server"], r["kind"], r["load"]): r["speedup"] for r in summary["speedups"]}
    columns = (
        ("TTFT p50 (s)", "ttft_s.p50.value", 1),
        ("TTFT p99 (s)", "ttft_s.p99.value", 1),
        ("TPOT p50 (ms)", "tpot_s.p50.value", 1000),
        ("TPOT p99 (ms)", "tpot_s.p99.value", 1000),
        ("e2e p50 (s)", "e2e_s.p50.value", 1),
        ("e2e p99 (s)", "e2e_s.p99.value", 1),
        ("tok/s", "tok_s", 1),
        ("good (/s)", "goodput_rps.value", 1),
        ("SLO met (%)", "attainment.value", 100),
        ("τ", "tau.value", 1),
        ("nodes", "nodes_per_round.value", 1),
    )
    load = "requests/s" if kind == "rate" else "in flight"
    rows: list[Row] = [[load, "server", "sent", "failed", *(name for name, _, _ in columns), "speed-up"]]
    for point in summary["points"]:
        if point["kind"] == kind:
            faster = speedups.get((point["server"], kind, point["load"]))
            rows.append(
                [
                    f"{point['load']:g}",
                    styles(summary)[point["server"]][0],
                    str(point["sent"]),
                    str(point["failed"]),
                    *(_shown(point["numbers"][path], scale) for _, path, scale in columns),
                    "" if faster is None else f"{faster['median']:.2f}×",
                ]
            )
    return rows if len(rows) > 1 else []


def cell_table(summary: dict[str, Any]) -> list[Row]:
    """Every cell with its bootstrap intervals, the head first."""
    paths = ("ttft_s.p50", "tpot_s.p50", "e2e_s.p50", "e2e_s.p99", "goodput_rps", "tau")
    rows: list[Row] = [
        ["cell", "sent", "failed", "TTFT p50 (s)", "TPOT p50 (s)", "e2e p50 (s)", "e2e p99 (s)",
         "goodput (/s)", "τ", "tok/s", "lag p99 (s)"]
    ]  # fmt: skip
    for name, cell in summary["cells"].items():
        numbers = cell["numbers"]
        lag = numbers["lag_s"]
        rows.append(
            [
                name if cell["valid"] else f"{name} (not valid)",
                str(numbers["sent"]),
                str(numbers["failed"]),
                *(_with_interval(numbers, path) for path in paths),
                f"{numbers['tok_s']:.4g}",
                f"{lag['p99']['value']:.3g}" if lag else "",
            ]
        )
    return rows


def points_csv(summary: dict[str, Any]) -> str:
    """All numbers of all points: median, lowest and highest over the repetitions."""
    head = ["server", "kind", "load", "cells", "valid", "sent", "failed"]
    names = [(path, part) for path in NUMBERS for part in ("median", "low", "high")]
    rows: list[Row] = [[*head, *(f"{path.removesuffix('.value')}.{part}" for path, part in names)]]
    for point in summary["points"]:
        values = [(point["numbers"][path] or {}).get(part) for path, part in names]
        rows.append([*(_plain(point[key]) for key in head), *map(_plain, values)])
    return _csv(rows)


def speedups_csv(summary: dict[str, Any]) -> str:
    rows: list[Row] = [["server", "kind", "load", "median", "low", "high"]]
    for row in summary["speedups"]:
        values = [(row["speedup"] or {}).get(part) for part in ("median", "low", "high")]
        rows.append([row["server"], row["kind"], _plain(row["load"]), *map(_plain, values)])
    return _csv(rows)


def _csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _plain(value: Any) -> str:
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def _shown(value: dict[str, float] | None, scale: float) -> str:
    if value is None:
        return ""
    scaled = value["median"] * scale
    return f"{scaled:.3g}" if scaled < 1000 else f"{scaled:.0f}"


def _with_interval(numbers: dict[str, Any], path: str) -> str:
    """`value [low, high]` of a ratio or of a quantile."""
    value: Any = numbers
    for key in path.split("."):
        value = None if value is None else value[key]
    return "" if value is None else f"{value['value']:.3g} [{value['ci'][0]:.3g}, {value['ci'][1]:.3g}]"
