"""Figures of what a round is like: drafts accepted, time by stage, nodes chosen."""

from __future__ import annotations

from typing import Any

from .report_shapes import RAMP, Figure, Series, styles


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


def _short_load(name: str) -> str:
    kind, _, value = name.partition("-")
    return value if kind == "rate" else f"c{value}"
