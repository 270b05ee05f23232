"""Quantiles and bootstrap intervals of weighted values, in the standard library alone.

A quantile is always a value that was measured: the smallest one that at least the given share of the weight does
not exceed (the inverse of the empirical distribution; no interpolation). Intervals are percentile bootstraps over
*requests*: gaps between tokens of one answer are not independent, so whole requests are drawn, with all of their
gaps. Draws come from `random.Random(seed).random()` only, whose sequence Python guarantees.
"""

import random
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from math import ceil, fsum

RESAMPLES = 1000
LEVEL = 0.95
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def quantile(ordered: Sequence[float], q: float) -> float:
    """Of sorted values. Raises IndexError if there are none."""
    return ordered[max(0, ceil(q * len(ordered) - 1e-9) - 1)]


def draws(units: int, seed: int, resamples: int = RESAMPLES) -> list[list[int]]:
    """`resamples` times how often each of `units` requests is drawn, with replacement."""
    uniform = random.Random(seed).random
    counts = []
    for _ in range(resamples):
        count = [0] * units
        for _ in range(units):
            count[int(uniform() * units)] += 1
        counts.append(count)
    return counts


def interval(values: Sequence[float]) -> list[float]:
    """The middle `LEVEL` of bootstrap values."""
    ordered = sorted(values)
    return [quantile(ordered, (1 - LEVEL) / 2), quantile(ordered, (1 + LEVEL) / 2)]


def ratio(numerators: Sequence[float], denominators: Sequence[float], counts: list[list[int]]) -> dict | None:
    """Σ numerator / Σ denominator over requests, `{"value", "ci"}`; None where nothing was counted."""
    if not sum(denominators):
        return None
    values = []
    for count in counts:
        if below := sum(d * c for d, c in zip(denominators, count, strict=True)):
            values.append(sum(n * c for n, c in zip(numerators, count, strict=True)) / below)
    return {"value": sum(numerators) / sum(denominators), "ci": interval(values)}


def distribution(samples: Sequence[Sequence[tuple[float, float]]], counts: list[list[int]]) -> dict | None:
    """Mean and quantiles of weighted values, pooled over requests.

    Args:
        samples: per request its `(value, weight)` pairs; a request may have none.
        counts: from `draws(len(samples), …)`.

    Returns:
        `{"n", "mean", "p50", "p90", "p99"}`, `n` the number of values and each of the others
        `{"value", "ci": [low, high]}`; None if there is no value.
    """
    flat = sorted((value, weight, unit) for unit, pairs in enumerate(samples) for value, weight in pairs)
    if not flat:
        return None
    values = [value for value, _, _ in flat]
    parts = [fsum(v * w for v, w in pairs) for pairs in samples]
    weights = [fsum(w for _, w in pairs) for pairs in samples]
    cells = [(unit, weight) for _, weight, unit in flat]
    boot: dict[str, list[float]] = {name: [] for name in QUANTILES}
    for count in counts:
        heap = list(accumulate(weight * count[unit] for unit, weight in cells))
        if heap[-1]:
            for name, q in QUANTILES.items():
                boot[name].append(_at(values, heap, q))
    heap = list(accumulate(weight for _, weight in cells))
    return {
        "n": len(values),
        "mean": ratio(parts, weights, counts),
        **{
            name: {"value": _at(values, heap, q), "ci": interval(boot[name])} for name, q in QUANTILES.items()
        },
    }


def _at(values: list[float], heap: list[float], q: float) -> float:
    return values[bisect_left(heap, q * heap[-1] * (1 - 1e-12))]
