"""What a reader must know before the numbers, found in the numbers themselves. Standard library only."""

from __future__ import annotations

from typing import Any

FEW = 100  # requests behind a p99: with fewer it is about the slowest one


def caveats(summary: dict[str, Any]) -> list[str]:
    """One sentence each, the gravest first."""
    labels = {name: server["label"] for name, server in summary["servers"].items()}
    found = [
        f"Cell {name} is not valid and is left out of all points: {' '.join(cell['reasons'])}"
        for name, cell in summary["cells"].items()
        if not cell["valid"]
    ]
    found += [f"Cell {event['cell']}: {event['what']}" for event in summary["events"]]
    failed = {labels[point["server"]] for point in summary["points"] if point["failed"]}
    if failed:
        found.append(
            f"Requests failed on {', '.join(sorted(failed))}; they count against goodput and attainment, and have "
            "no latency."
        )
    empty = [point for point in summary["points"] if not point["valid"]]
    if empty:
        found.append(f"{len(empty)} of {len(summary['points'])} points have no valid cell and are missing.")
    fewest = min((c["numbers"]["completed"] for c in summary["cells"].values() if c["valid"]), default=0)
    if fewest < FEW:
        found.append(
            f"The smallest cell has {fewest} answers. A p99 of fewer than {FEW} is close to the slowest answer; "
            "look at the intervals in the last table."
        )
    repetitions = min(point["valid"] for point in summary["points"])
    if repetitions < 3:
        found.append(
            f"There are points with {repetitions} valid repetition{'s' if repetitions != 1 else ''} only: "
            "bars over repetitions say little."
        )
    found += [
        "The load generator shares the machine with the servers if these ran on a loopback address; its lag is in "
        "the last table, and a run in which it was late is not valid.",
        "At an overload a run has no steady state: latencies grow for as long as it lasts, so there they compare "
        "servers at this duration and say nothing about a longer one.",
        "τ counts the target's own token: 1 is plain decoding. It is a mean over rounds, not over requests.",
    ]
    return found
