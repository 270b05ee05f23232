"""The adaptive budget: each round as deep and as wide as pays at the present load.

A decision has two moments. Before drafting, `plan` says how deep to draft, or not at all, from what recent
trees brought on average. Once the trees are there, `cut` says how many nodes to verify, from these very trees
(where the host has them without waiting; elsewhere the plan stands).

What is not tried is not learnt. So now and then a round drafts to the full depth although the plan says
otherwise: seldom enough that it costs no more than `PROBING` of the time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from .calibration import Calibration
from .cost import CostModel, RoundShape
from .load import octave_of
from .price import best_width, candidate_widths

PROBING = 0.005
MEMORY = 48  # requests' rounds that the expected gain remembers, in effect
FIRST = 8  # requests' rounds at full depth before any plan is trusted


@dataclass(frozen=True)
class Plan:
    """`nodes` to verify and `depth` to draft (0: plain decoding); `probe`: drafted deep only to learn."""

    nodes: int
    depth: int
    probe: bool = False


class AdaptiveBudget:
    """State of one server. All numbers live on the host."""

    def __init__(self, cost: CostModel, budget: int, max_depth: int) -> None:
        self.cost = cost
        self.max_depth = max_depth
        self.widths = candidate_widths(budget)
        self.calibration = Calibration(max_depth)
        self._gain = np.zeros(len(self.widths))  # accepted drafts a request and round, expected, by width
        self._weight = np.zeros(len(self.widths))  # how many observations are behind it, up to MEMORY
        self._present: dict[int, int] = {}  # octave of the batch -> width last chosen at it
        self._weighed: dict[int, list[tuple[int, float, float]]] = {}  # octave -> width, tokens, seconds
        self._debt = 0.0  # seconds that probes have cost beyond what they are allowed to
        self.rounds: Counter[tuple[int, int]] = Counter()  # (octave of the batch, width) -> rounds
        self.probes = 0

    def depth_of(self, nodes: int) -> int:
        """How deep a tree of `nodes` can be: no deeper than a chain of them."""
        return min(self.max_depth, nodes - 1)

    def plan(self, batch: int, context: int, most: int) -> Plan:
        """What to draft for `batch` requests with `context` committed tokens on average, and at most `most` nodes."""
        widths = [n for n in self.widths if n <= most]
        seconds = [self._seconds(batch, n, self.depth_of(n), context) for n in widths]
        tokens = [batch * (1 + self._gain[i]) for i in range(len(widths))]
        self._weighed[octave_of(batch)] = list(zip(widths, tokens, seconds, strict=True))
        nodes = best_width(widths, tokens, seconds, self._present.get(octave_of(batch)))
        depth, full = self.depth_of(nodes), self.depth_of(widths[-1])
        if depth == full:
            return Plan(nodes, depth)
        if self._weight[len(widths) - 1] < FIRST:
            return Plan(nodes, full, probe=True)
        took = seconds[widths.index(nodes)]
        self._debt = max(0.0, self._debt - PROBING * took)
        if self._debt > 0:
            return Plan(nodes, depth)
        self._debt = max(0.0, self._seconds(batch, nodes, full, context) - took)
        return Plan(nodes, full, probe=True)

    def cut(self, plan: Plan, logprob: np.ndarray, depth: np.ndarray, caps: np.ndarray, context: int) -> int:
        """How many nodes of the drafted trees to verify.

        logprob, depth: [B, N], slots in the order of the tree; caps: [B], most nodes of each request.
        """
        batch, slots = logprob.shape
        gain = self._gain_of(logprob, depth)
        gain = gain[np.arange(batch)[:, None], np.minimum(np.arange(slots), caps[:, None] - 1)]
        widths = [n for n in self.widths if n < slots] + [slots]  # trees that were found may have any size
        tokens = [batch + gain[:, n - 1].sum() for n in widths]
        seconds = [self._seconds(batch, n, plan.depth, context) for n in widths]
        return best_width(widths, tokens, seconds, self._present.get(octave_of(batch)))

    def chosen(self, shape: RoundShape, probe: bool) -> None:
        """Note what a round really does."""
        octave = octave_of(shape.batch)
        self._present[octave] = shape.nodes
        self.rounds[octave, shape.nodes] += 1
        self.probes += probe

    def learn_tree(self, logprob: np.ndarray, depth: np.ndarray, drafted: int) -> None:
        """What trees drafted `drafted` deep promise: [B, N], before any cut. Widths that want more depth learn none."""
        gain = self._gain_of(logprob, depth)
        for i, n in enumerate(self.widths):
            if n <= gain.shape[1] and self.depth_of(n) <= drafted:
                count = len(gain)
                self._weight[i] = min(MEMORY, self._weight[i] + count)
                share = min(1.0, count / self._weight[i])
                self._gain[i] += share * (gain[:, n - 1].mean() - self._gain[i])
        np.maximum.accumulate(self._gain, out=self._gain)  # a larger tree holds the smaller one

    def learn_outcome(self, logprob: np.ndarray, depth: np.ndarray, accepted: np.ndarray) -> None:
        """Which verified nodes were accepted: [B, n] each, the root in slot 0."""
        drafts = np.isfinite(logprob[:, 1:])
        self.calibration.learn(
            logprob[:, 1:][drafts], depth[:, 1:][drafts], accepted[:, 1:][drafts], len(logprob)
        )

    def _gain_of(self, logprob: np.ndarray, depth: np.ndarray) -> np.ndarray:
        """[B, N]: expected accepted drafts of the first n nodes, root included, at n - 1."""
        probability = self.calibration.probability(logprob, depth)
        probability[:, 0] = 0  # the root is committed already
        return probability.cumsum(1)

    def _seconds(self, batch: int, nodes: int, depth: int, context: int) -> float:
        return self.cost.seconds(RoundShape(batch, nodes, depth, context), hopeful=True)

    def report(self) -> dict:
        """Plain values for /server_info: rounds by load and width, expected gains, calibration, cost level."""
        rounds: dict[str, dict[str, int]] = {}
        for (octave, nodes), count in sorted(self.rounds.items()):
            rounds.setdefault(str(2 ** (octave - 1)), {})[str(nodes)] = count
        weighed = {
            str(2 ** (octave - 1)): {
                str(n): {"ms": round(1000 * seconds, 2), "tok_s": round(tokens / seconds, 1)}
                for n, tokens, seconds in rows
            }
            for octave, rows in sorted(self._weighed.items())
        }
        return {
            "rounds_by_batch_and_nodes": rounds,
            "last_plan_by_batch_and_nodes": weighed,
            "expected_tau": {str(n): 1 + g for n, g in zip(self.widths, self._gain.tolist(), strict=True)},
            "probes": self.probes,
            "live_over_measured": self.cost.report(),
            "calibration": self.calibration.report(),
        }
