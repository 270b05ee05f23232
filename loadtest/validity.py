"""Whether a run measured the server, or the generator. Standard library only.

A generator that starts requests late, or is late to notice their tokens, adds its own time to every latency. It
may do so by `LATE_S` or by `LATE_SHARE` of the median time to first token, whichever is more, in all but one in a
hundred cases; beyond that the run is invalid.
"""

from collections.abc import Sequence

from .bootstrap import QUANTILES, quantile
from .metrics import lag, ttft
from .records import Request

LATE_S = 0.02
LATE_SHARE = 0.1


def lateness(values: Sequence[float]) -> dict[str, float]:
    """`{"p50_s", "p90_s", "p99_s", "max_s"}`, all 0 without values."""
    ordered = sorted(values) or [0.0]
    return {**{f"{name}_s": quantile(ordered, q) for name, q in QUANTILES.items()}, "max_s": ordered[-1]}


def start_lag(requests: Sequence[Request]) -> dict[str, float]:
    """How late first turns started; later turns have no due time of their own."""
    return lateness([lag(request) for request in requests if request.turn == 0])


def problems(
    requests: Sequence[Request],
    schedule: Sequence[float] | None,
    loop: dict[str, float],
    *,
    stopped_early: bool,
) -> list[str]:
    """Why the run must not be published, one sentence each; empty if it may.

    Args:
        schedule: all arrivals of an open loop, None in a closed one.
        loop: `lateness` of the generator's timers.
    """
    found = []
    if stopped_early:
        found.append("It was stopped before its end.")
    measured = [r for r in requests if r.phase == "measure"]
    first = sorted(value for r in measured if (value := ttft(r)) is not None)
    bound = max(LATE_S, LATE_SHARE * quantile(first, 0.5)) if first else LATE_S
    started = start_lag(requests)
    if schedule is not None and started["p99_s"] > bound:
        found.append(
            f"The generator started requests late: p99 {_ms(started['p99_s'])}, at most {_ms(bound)} is accepted."
        )
    if loop["p99_s"] > bound:
        found.append(
            f"The generator's timers fired late: p99 {_ms(loop['p99_s'])}, at most {_ms(bound)} is accepted."
        )
    missing = len(schedule or ()) - len({r.id for r in requests if r.turn == 0})
    if schedule is not None and missing:
        found.append(f"{missing} of {len(schedule)} scheduled requests have no record.")
    if not measured:
        found.append("No request falls into the measured window.")
    return found


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"
