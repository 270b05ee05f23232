"""What the report shows, apart from how it is drawn: `plots` makes PNGs of it, `report_plotly` the page's plots.

Standard library only: the audit makes the same figures again from the raw files.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .report_load_figures import crossovers, over_load, pareto, speedup
from .report_round_figures import histograms, stages, widths
from .report_shapes import Section


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
