"""From a drafter's path probability to the chance that the node is accepted.

A head is over-confident here and too shy there, and more so with depth: each depth's factor multiplies. What
the price rule needs is that the sum of a tree's probabilities predicts its accepted drafts. So acceptance is
counted over (depth, path log-probability), and a node's probability is the drafter's own number times what its
cell accepted of what it claimed. Old counts fade, because text changes.
"""

from __future__ import annotations

import numpy as np

EDGES = -np.array([0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.4, 1.8, 2.3, 2.9, 3.6, 4.5, 6.0])  # nats, falling
PRIOR = 2.0  # accepted drafts that the drafter's own word counts for
MEMORY = 4096.0  # nodes a cell remembers, in effect


class Calibration:
    """Acceptance counts by depth (1 … max_depth) and path log-probability.

    It learns from verified nodes only, which is the population that it is asked about.
    """

    def __init__(self, max_depth: int) -> None:
        shape = (max_depth + 1, len(EDGES) + 1)
        self._seen = np.zeros(shape)
        self._accepted = np.zeros(shape)
        self._claimed = np.zeros(shape)  # sum of the drafter's probabilities
        # Depth -> [nodes, raw prediction, calibrated prediction, accepted], by octave of the batch.
        self._errors: dict[int, np.ndarray] = {}

    def probability(self, logprob: np.ndarray, depth: np.ndarray) -> np.ndarray:
        """Chance of acceptance, elementwise; `logprob` fp32 (-inf for padding, which gets 0), `depth` int, > 0."""
        raw = np.exp(logprob)
        cell = depth, _bins(logprob)
        # The cell's bias, as a factor on the drafter's number: inside a cell likelier nodes stay likelier.
        factor = (self._accepted[cell] + PRIOR) / (self._claimed[cell] + PRIOR)
        return np.minimum(raw * factor, 1.0)

    def learn(self, logprob: np.ndarray, depth: np.ndarray, accepted: np.ndarray, batch: int) -> None:
        """Verified nodes of one round: drafts only, no root and no padding; all flat. Predictions are scored first."""
        predicted = self.probability(logprob, depth)
        raw = np.exp(logprob)
        errors = self._errors.setdefault(batch.bit_length(), np.zeros((len(self._seen), 4)))
        for column, value in enumerate((np.ones_like(raw), raw, predicted, accepted)):
            np.add.at(errors[:, column], depth, value)
        cell = depth, _bins(logprob)
        np.add.at(self._seen, cell, 1.0)
        np.add.at(self._accepted, cell, accepted)
        np.add.at(self._claimed, cell, raw)
        full = self._seen > MEMORY
        for counts in (self._accepted, self._claimed, self._seen):
            counts[full] *= 0.5

    def report(self) -> list[dict]:
        """A row for each load and depth: nodes seen, and mean accepted against mean predicted, raw and calibrated.

        Each prediction was made before its node's outcome was learnt.
        """
        rows = []
        for octave, errors in sorted(self._errors.items()):
            for depth, (nodes, raw, predicted, accepted) in enumerate(errors):
                if nodes:
                    rows.append(
                        {
                            "batch": f"{2 ** (octave - 1)}-{2**octave - 1}" if octave > 1 else "1",
                            "depth": depth,
                            "nodes": int(nodes),
                            "accepted": accepted / nodes,
                            "predicted_raw": raw / nodes,
                            "predicted": predicted / nodes,
                        }
                    )
        return rows


def _bins(logprob: np.ndarray) -> np.ndarray:
    return np.searchsorted(-EDGES, -logprob)
