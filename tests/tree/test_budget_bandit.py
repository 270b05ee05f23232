"""The bandit budget on simulated machines whose best width is known."""

import json
import math

import numpy as np
import pytest

from jetspec_sglang.tree.budget import Bandit, bandit, candidate_widths

WIDTHS = candidate_widths(16)
DRAFTS = np.array([0, 0.42, 0.6, 0.7, 0.85, 0.98, 1.1, 1.15])  # accepted a request and round, by width
FIRST, LATER, LAST = 500, 2000, 500  # rounds


class Machine:
    """Rounds of `batch` requests. tokens: expected of a round, seconds: usual, by width."""

    def __init__(self, batch: int, drafts: np.ndarray, seconds: np.ndarray) -> None:
        self.batch, self.drafts, self.seconds = batch, drafts, seconds
        self.tokens = batch * (1 + drafts)
        self.rates = self.tokens / self.seconds
        self.best = WIDTHS[int(self.rates.argmax())]

    def committed(self, rng: np.random.Generator, arm: int) -> list[float]:
        """By the tree of each width up to that of `arm`: trees are nested, so one draw a request decides for all."""
        luck = np.log(rng.random(self.batch))
        stop = np.log(np.maximum(1 - 1 / (1 + self.drafts[: arm + 1]), 1e-300))
        return [float(np.ceil(luck / s).clip(1).sum()) for s in stop]


def near(batch: int) -> Machine:
    """Rows cost from six on, drafting always: the more requests the narrower the best."""
    rows = batch * np.array(WIDTHS)
    drafting = (np.array(WIDTHS) > 1) * (0.004 + 0.0003 * batch)
    return Machine(batch, DRAFTS, 0.024 + 0.0008 * np.maximum(0, rows - 6) + drafting)


def costly(batch: int, row: float) -> Machine:
    """`row` seconds more a row."""
    return Machine(batch, 2 * DRAFTS, 0.010 + row * batch * (np.array(WIDTHS) - 1))


# Drafting costs as much as verifying, and more nodes nothing: two nodes are far worse than one, sixteen are best.
VALLEY = Machine(1, 1.5 * DRAFTS, np.array([0.010] + [0.020] * 7))
MACHINES = {
    "one request": costly(1, 0.0002),
    "drafting is dear": VALLEY,
    "four requests": costly(4, 0.0015),
    "sixteen requests": near(16),
}


def serve(learner: Bandit, machine: Machine, rounds: int, seed: int, load: int = 1) -> tuple[list[int], float]:
    """Widths chosen, and tokens a second in expectation."""
    rng = np.random.default_rng(seed)
    chosen, tokens, seconds = [], 0.0, 0.0
    for _ in range(rounds):
        width = learner.choose(load, WIDTHS[-1]).width
        arm = WIDTHS.index(width)
        took = machine.seconds[arm] * rng.lognormal(0, 0.05)
        learner.learn(load, width, machine.committed(rng, arm), took)
        chosen.append(width)
        tokens += machine.tokens[arm]
        seconds += machine.seconds[arm]
    return chosen, tokens / seconds
