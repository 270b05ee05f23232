"""Open-loop arrivals: absolute start times in seconds since the run's zero, sorted, fixed before the run.

They do not depend on the server, so a slow server meets the same load as a fast one. Draws use
`random.Random(seed).random()` alone: one seed gives one schedule, on every worker and Python version.
"""

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from .config import LoadConfig


class ScheduleError(ValueError):
    """No schedule can be made; the message is one sentence."""


def schedule(config: LoadConfig) -> list[float]:
    """All arrivals in `[0, config.end_s)`, warm-up's included.

    Raises:
        ScheduleError: a trace that can't be read, or nothing in the measured window.
    """
    end = config.end_s
    match config.arrivals:
        case "poisson":
            times = poisson(config.rate, end, config.seed)
        case "constant":
            times = constant(config.rate, end)
        case "bursts":
            times = bursts(config.rate, config.burst, end)
        case "ramp":
            assert config.rate_to is not None
            times = ramp(config.rate, config.rate_to, config.warmup_s, end, config.seed)
        case "trace":
            assert config.trace is not None
            times = [time for time in trace(config.trace) if time < end]
        case other:
            raise ScheduleError(f"arrivals {other} have no schedule; a closed loop starts when answers end.")
    if not any(time >= config.warmup_s for time in times):
        raise ScheduleError(
            f"No request falls into the measured window ({config.warmup_s:g} to {end:g} s); "
            "give a higher rate or a longer duration."
        )
    return times


def poisson(rate: float, end: float, seed: int) -> list[float]:
    """Independent exponential gaps of mean 1 / rate."""
    return _unit_poisson(rate * end, seed, lambda mass: mass / rate)


def constant(rate: float, end: float) -> list[float]:
    """Equal gaps, the first arrival at 0."""
    return [n / rate for n in range(math.ceil(rate * end - 1e-9))]


def bursts(rate: float, size: int, end: float) -> list[float]:
    """`size` arrivals at the same moment, every `size / rate` seconds."""
    return [start for start in constant(rate / size, end) for _ in range(size)]


def ramp(rate: float, rate_to: float, warmup: float, end: float, seed: int) -> list[float]:
    """Poisson whose rate is `rate` during warm-up and then grows (or falls) evenly to `rate_to` at `end`.

    A unit-rate process, mapped through the inverse of the integrated rate.
    """
    slope = (rate_to - rate) / (end - warmup)

    def inverse(mass: float) -> float:
        rest = mass - rate * warmup
        if rest <= 0 or slope == 0:
            return mass / rate
        # slope / 2 · t² + rate · t = rest, in the form that does not cancel for small slopes
        return warmup + 2 * rest / (rate + math.sqrt(rate * rate + 2 * slope * rest))

    return _unit_poisson(rate * warmup + (rate + rate_to) / 2 * (end - warmup), seed, inverse)


def trace(file: Path) -> list[float]:
    """Recorded arrivals: one number of seconds a line, in any order; the earliest becomes 0.

    Raises:
        ScheduleError: the file can't be read or holds something else.
    """
    try:
        times = sorted(float(line) for line in file.read_text(encoding="utf-8").split())
    except (OSError, ValueError) as error:
        raise ScheduleError(
            f"{file} is no trace ({error}); write one start time in seconds a line."
        ) from error
    if not times or not all(map(math.isfinite, times)):
        raise ScheduleError(f"{file} is no trace; write one start time in seconds a line.")
    return [time - times[0] for time in times]


def share(times: Sequence[float], worker: int, workers: int) -> list[tuple[int, float]]:
    """`(number, time)` of the arrivals that worker `worker` of `workers` starts: every `workers`-th one."""
    return list(enumerate(times))[worker::workers]


def _unit_poisson(mass: float, seed: int, place: Callable[[float], float]) -> list[float]:
    """Arrivals of rate 1 up to `mass`, each put where `place` says."""
    uniform = random.Random(seed).random
    times: list[float] = []
    at = 0.0
    while True:
        at -= math.log(1 - uniform())
        if at >= mass:
            return times
        times.append(place(at))
