"""What a round costs: measured at start-up, kept true by the rounds that follow.

Start-up gives the *shape* of the cost over batch and nodes from a few dry runs. It cannot give the level: how
busy the machine is, what the scheduler adds between rounds, how warm the caches are. So live rounds correct the
prediction (`correction.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from .correction import UNKNOWN_LEVEL, Correction, Estimate
from .load import UsualGaps, octave_of


@dataclass(frozen=True)
class RoundShape:
    """What a round's time depends on. `depth` drafts are made a request (0: nothing is drafted), `nodes` verified."""

    batch: int
    nodes: int
    depth: int
    context: int  # committed tokens a request, on average


@dataclass(frozen=True)
class Sample:
    """One measured round: seconds of drafting, of the target's forward, and of all the rest."""

    shape: RoundShape
    draft: float
    verify: float
    rest: float


class Surface:
    """Seconds over (batch, rows): a monotone curve of the rows of all requests, plus something a request.

    The curve is piecewise linear between powers of two. Both parts are fitted together, least squares on the
    relative error with all increments >= 0: more rows never cost less, however noisy the samples.
    """

    def __init__(self, batches: Sequence[int], rows: Sequence[int], seconds: Sequence[float]) -> None:
        top = max(1, int(np.ceil(np.log2(max(rows)))))
        self._knots = 2.0 ** np.arange(top + 1)
        weight = 1 / np.maximum(np.asarray(seconds, float), 1e-9)
        design = np.array([self._features(b, r) for b, r in zip(batches, rows, strict=True)])
        self._coefficients, _ = nnls(design * weight[:, None], np.ones(len(weight)))

    @classmethod
    def of(
        cls, samples: Sequence[Sample], rows: Callable[[RoundShape], int], seconds: Sequence[float]
    ) -> Surface:
        """From samples, `rows` says how many rows the work has in a round of that shape."""
        return cls([s.shape.batch for s in samples], [rows(s.shape) for s in samples], seconds)

    def _features(self, batch: int, rows: int) -> np.ndarray:
        # Feature k is how much of the step from knot k-1 to knot k lies below `rows`, from 0 to 1.
        low, high = self._knots[:-1], self._knots[1:]
        steps = np.clip((rows - low) / (high - low), 0, 1)
        if rows > high[-1]:  # beyond what was measured the last step goes on as it is
            steps[-1] = (rows - low[-1]) / (high[-1] - low[-1])
        return np.array([1.0, batch - 1, *steps])

    def seconds(self, batch: int, rows: int) -> float:
        return float(self._features(batch, rows) @ self._coefficients)


class CostModel:
    """Seconds of a whole round, from the end of the one before.

    samples: dry runs; at least one with drafts and two sizes of batch or nodes to be of use.
    """

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._reference = min(sample.shape.context for sample in samples)
        near = [sample for sample in samples if sample.shape.context == self._reference]
        drafted = [sample for sample in near if sample.shape.depth]
        self._draft = Surface.of(drafted, _draft_rows, [s.draft for s in drafted]) if drafted else None
        self._verify = Surface.of(near, _verify_rows, [s.verify for s in near])
        self._rest = Surface.of(near, _verify_rows, [s.rest for s in near])
        self._per_context = self._slopes(samples)
        self._known: dict[tuple[int, int, int], float] = {}  # by batch, nodes and depth
        self._corrections: dict[int, Correction] = {}
        self._rounds = 0
        self._gaps = UsualGaps()

    def _slopes(self, samples: Sequence[Sample]) -> tuple[float, float]:
        """Seconds of verify that a token of context adds: for a request, and for each of its nodes, as each reads the
        whole context; from the samples with a longer one. (0, 0) without any."""
        longer = [s for s in samples if s.shape.context > self._reference]
        if not longer:
            return 0.0, 0.0
        design = np.array([[1.0, s.shape.nodes] for s in longer])
        more = [s.shape.batch * (s.shape.context - self._reference) for s in longer]
        usual = [self._verify.seconds(s.shape.batch, _verify_rows(s.shape)) for s in longer]
        added = [max(0.0, s.verify - t) / m for s, t, m in zip(longer, usual, more, strict=True)]
        (request, node), _ = nnls(design, np.array(added))
        return float(request), float(node)

    def measured(self, shape: RoundShape) -> float:
        """The start-up prediction alone, scheduling between rounds not included."""
        key = shape.batch, shape.nodes, shape.depth
        if key not in self._known:  # each round asks for every width, and the answer stays
            self._known[key] = self._at_reference(shape)
        request, node = self._per_context
        more = shape.batch * max(0, shape.context - self._reference)
        return self._known[key] + more * (request + node * shape.nodes)

    def _at_reference(self, shape: RoundShape) -> float:
        total = self._verify.seconds(shape.batch, _verify_rows(shape))
        total += self._rest.seconds(shape.batch, _verify_rows(shape))
        if shape.depth and self._draft:
            total += self._draft.seconds(shape.batch, _draft_rows(shape))
        return max(total, 1e-9)

    def seconds(self, shape: RoundShape, hopeful: bool = False) -> float:
        """What the next round of this shape should take, scheduling included; `hopeful` if it is hardly known."""
        factor = self._correction(shape.batch).factor(_kind(shape), hopeful)
        return self.measured(shape) * factor + self._gaps.seconds(shape.batch, shape.depth > 0)

    def observe(self, shape: RoundShape, seconds: float, gap: float | None) -> None:
        """One live round: `seconds` in its stages, `gap` between the end of the last and its start (None: unknown,
        as after a prefill or an idle time)."""
        self._rounds += 1
        octave = octave_of(shape.batch)
        if octave not in self._corrections:
            # As slow or fast as the nearest load that is known, until it shows.
            near = self._correction(shape.batch).level.mean
            self._corrections[octave] = Correction(Estimate(near, UNKNOWN_LEVEL))
        self._corrections[octave].observe(_kind(shape), seconds / self.measured(shape), self._rounds)
        if gap is not None:
            self._gaps.observe(shape.batch, shape.depth > 0, gap)

    def report(self) -> dict[str, dict[str, float]]:
        """Live time over start-up time: by the smallest batch of an octave, then as `Correction.report`."""
        return {str(2 ** (octave - 1)): c.report() for octave, c in sorted(self._corrections.items())}

    def _correction(self, batch: int) -> Correction:
        if not self._corrections:
            return Correction()
        own = octave_of(batch)
        nearest = min(self._corrections, key=lambda octave: abs(octave - own))
        known = self._corrections[nearest]
        return known if nearest == own else Correction(known.level)


def _verify_rows(shape: RoundShape) -> int:
    return shape.batch * shape.nodes


def _draft_rows(shape: RoundShape) -> int:
    return shape.batch * (shape.depth + 1)


def _kind(shape: RoundShape) -> tuple[int, int]:
    return shape.nodes, shape.depth
