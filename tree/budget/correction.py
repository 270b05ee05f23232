"""Live rounds against the start-up prediction: how much slower or faster than it, and for which shapes.

The log of (live time / predicted time) of a round is, for requests in about this number,

    level + offset of plain or of drafted rounds + offset of the shape + noise

*level* is how the machine does at present: it wanders, and all rounds share it. The offsets are what the start-up
prediction has wrong, and stay: most of it is wrong for all drafted rounds alike, so that a few of any shape teach
about all shapes. The first shape seen is the reference, whose offsets are 0 by definition. A scalar Kalman filter
each shares out what a round shows beyond expectation by how uncertain all are, so that a machine that slows down
doesn't make the shape in use look bad, and a shape that is worse than predicted doesn't make the machine look slow.
One round far off is a hiccup and hardly counts; two in a row are news.

What was never tried can't be corrected: if the start-up measurement says that the best shape is dear, no round
would ever find out. So decisions use a factor that is hopeful by half a standard deviation of the offsets. A shape
that may well be the best is tried, and after a few rounds little hope is left that it isn't entitled to.
"""

from dataclasses import dataclass, field
from math import exp, log, sqrt

NOISE = 0.08**2  # variances of logarithms: of a single round,
WANDER = 0.02**2  # of the level from one round to the next,
UNKNOWN_LEVEL = 0.3**2  # of a level not seen for long,
UNKNOWN_KIND = 0.2**2  # of plain rounds against drafted ones, where only one kind was seen,
UNKNOWN_SHAPE = 0.08**2  # and of a shape never seen against others of its kind
FAR = 2.0  # standard deviations
HOPE = 0.5

Shape = tuple[int, int]  # nodes, depth; depth 0 is a plain round


@dataclass
class Estimate:
    mean: float
    variance: float


def _known() -> Estimate:
    return Estimate(0.0, 0.0)


@dataclass
class Correction:
    """State for one octave of the batch."""

    level: Estimate = field(default_factory=lambda: Estimate(0.0, UNKNOWN_LEVEL))
    kinds: dict[bool, Estimate] = field(default_factory=dict)  # of drafted rounds (True) and plain ones
    shapes: dict[Shape, Estimate] = field(default_factory=dict)
    seen: int = 0  # number of the last round observed here
    _far: float = 0.0  # sign of the last round's surprise, if it was a large one

    def factor(self, shape: Shape, hopeful: bool) -> float:
        """What to multiply the prediction of `shape` by."""
        kind, own = self._offsets(shape)
        hope = HOPE * sqrt(kind.variance + own.variance) if hopeful else 0.0
        return exp(self.level.mean + kind.mean + own.mean - hope)

    def observe(self, shape: Shape, ratio: float, number: int) -> None:
        """Round `number` of the server took `ratio` times the prediction."""
        kind, own = self._offsets(shape)
        self.kinds[_drafted(shape)], self.shapes[shape] = kind, own
        level, estimates = self.level, (self.level, kind, own)
        level.variance = min(UNKNOWN_LEVEL, level.variance + WANDER * max(1, number - self.seen))
        self.seen = number
        surprise = log(ratio) - sum(estimate.mean for estimate in estimates)
        limit = FAR * sqrt(sum(estimate.variance for estimate in estimates) + NOISE)
        far = 0.0 if abs(surprise) <= limit else 1.0 if surprise > 0 else -1.0
        if far and far == self._far:
            level.variance, limit = UNKNOWN_LEVEL, abs(surprise)
        self._far = far
        surprise = max(-limit, min(limit, surprise))
        total = sum(estimate.variance for estimate in estimates) + NOISE
        for estimate in estimates:
            gain = estimate.variance / total
            estimate.mean += gain * surprise
            estimate.variance *= 1 - gain

    def report(self) -> dict[str, float]:
        """Live time over start-up time, by shape as `nodes/depth`."""
        return {f"{n}/{d}": round(self.factor((n, d), False), 3) for n, d in sorted(self.shapes)}

    def _offsets(self, shape: Shape) -> tuple[Estimate, Estimate]:
        """Of the shape's kind, and its own."""
        if not self.kinds:
            return _known(), _known()
        kind = self.kinds.get(_drafted(shape)) or Estimate(0.0, UNKNOWN_KIND)
        # All plain rounds have one shape, so its kind says all of it.
        own = self.shapes.get(shape) or (Estimate(0.0, UNKNOWN_SHAPE) if _drafted(shape) else _known())
        return kind, own


def _drafted(shape: Shape) -> bool:
    return shape[1] > 0
