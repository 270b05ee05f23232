"""Nodes over many rounds, counted by depth and rank among siblings."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .draw import DrawnRound


@dataclass(frozen=True)
class NodeCounts:
    """drafted, accepted: `[D, W]` int64, nodes by depth - 1 and rank among siblings, summed over `rounds`.

    D and W are the largest that occur; both are 0 if no round drafted anything.
    """

    rounds: int
    drafted: np.ndarray
    accepted: np.ndarray

    @classmethod
    def of(cls, rounds: Sequence[DrawnRound]) -> "NodeCounts":
        shape = (
            max((max(drawn.depth) for drawn in rounds), default=0),
            max((len(family) for drawn in rounds for family in drawn.children), default=0),
        )
        drafted, accepted = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for drawn in rounds:
            for counts, slots in ((drafted, range(1, drawn.size)), (accepted, drawn.path[1:])):
                for slot in slots:
                    counts[drawn.depth[slot] - 1, drawn.rank[slot]] += 1
        return cls(len(rounds), drafted, accepted)

    @property
    def acceptance(self) -> np.ndarray:
        """`[D, W]` float64, accepted / drafted; nan where nothing was drafted."""
        return np.divide(
            self.accepted, self.drafted, out=np.full(self.drafted.shape, np.nan), where=self.drafted > 0
        )
