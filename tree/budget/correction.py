"""Live rounds against the start-up prediction: how much slower or faster than it, and for which shapes.

The log of (live time / predicted time) of a round is, for requests in about this number,

    level + offset of the shape + noise

*level* is how the machine does at present: it wanders, and all shapes share it. *offset* is what the start-up
prediction has wrong about one shape: it stays. The first shape seen is the reference, whose offset is 0 by
definition. A scalar Kalman filter each shares out what a round shows beyond expectation by how uncertain both are,
so that a machine that slows down doesn't make the shape in use look bad, and a shape that is worse than predicted
doesn't make the machine look slow. One round far off is a hiccup and hardly counts; two in a row are news.
"""

from dataclasses import dataclass, field
from math import exp, log, sqrt

NOISE = 0.08**2  # variances of logarithms: of a single round,
WANDER = 0.02**2  # of the level from one round to the next,
UNKNOWN_LEVEL = 0.3**2  # of a level not seen for long,
UNKNOWN_OFFSET = 0.15**2  # and of a shape never seen
FAR = 2.0  # standard deviations


@dataclass
class Estimate:
    mean: float
    variance: float


@dataclass
class Correction:
    """State for one octave of the batch."""

    level: Estimate = field(default_factory=lambda: Estimate(0.0, UNKNOWN_LEVEL))
    offsets: dict[tuple[int, int], Estimate] = field(default_factory=dict)
    seen: int = 0  # number of the last round observed here
    _far: float = 0.0  # sign of the last round's surprise, if it was a large one

    def factor(self, shape: tuple[int, int]) -> float:
        """What to multiply the prediction of `shape` (nodes, depth) by."""
        offset = self.offsets.get(shape)
        return exp(self.level.mean + (offset.mean if offset else 0.0))

    def observe(self, shape: tuple[int, int], ratio: float, number: int) -> None:
        """Round `number` of the server took `ratio` times the prediction."""
        new = UNKNOWN_OFFSET if self.offsets else 0.0  # the first is the reference
        level, offset = self.level, self.offsets.setdefault(shape, Estimate(0.0, new))
        level.variance = min(UNKNOWN_LEVEL, level.variance + WANDER * max(1, number - self.seen))
        self.seen = number
        surprise = log(ratio) - level.mean - offset.mean
        limit = FAR * sqrt(level.variance + offset.variance + NOISE)
        far = 0.0 if abs(surprise) <= limit else 1.0 if surprise > 0 else -1.0
        if far and far == self._far:
            level.variance, limit = UNKNOWN_LEVEL, abs(surprise)
        self._far = far
        surprise = max(-limit, min(limit, surprise))
        total = level.variance + offset.variance + NOISE
        for estimate in (level, offset):
            gain = estimate.variance / total
            estimate.mean += gain * surprise
            estimate.variance *= 1 - gain
