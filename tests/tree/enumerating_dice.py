"""Dice that go through every outcome of the code that throws them, with its exact probability.

The code is run again and again; each run follows a *trail*, a list of outcomes to repeat, then takes the first
possible outcome of every further throw and notes the others as trails of their own. So each outcome of the whole
comes up in exactly one run.
"""

from collections import defaultdict

import torch

NEGLIGIBLE = 1e-14  # probabilities below are rounding errors, not outcomes


class Trail:
    """One run's throws: repeated as far as the trail goes, first possible outcome behind it."""

    def __init__(self, start=()):
        self.start, self.taken, self.probability, self.forks = start, [], 1.0, []

    def throw(self, weights):
        total = sum(weights)
        possible = [i for i, weight in enumerate(weights) if weight / total > NEGLIGIBLE]
        if len(self.taken) < len(self.start):
            outcome = self.start[len(self.taken)]
        else:
            outcome = possible[0]
            self.forks += [(*self.taken, other) for other in possible[1:]]
        self.taken.append(outcome)
        self.probability *= weights[outcome] / total
        return outcome


class PlainEnumeratingDice(Trail):
    """For the plain Python references."""

    def draw(self, weights):
        return self.throw(weights)

    def coin(self, chance):
        return self.throw([1 - chance, chance]) == 1


class EnumeratingDice:
    """For batched code: every row of the batch follows a trail of its own."""

    def __init__(self, starts):
        self.trails = [Trail(start) for start in starts]

    def draw(self, weights):
        rows = weights.reshape(len(self.trails), -1, weights.shape[-1]).tolist()
        drawn = [[trail.throw(row) for row in group] for trail, group in zip(self.trails, rows, strict=True)]
        return torch.tensor(drawn).view(weights.shape[:-1])

    def order(self, weights, counts, width):
        drawn = torch.zeros(*weights.shape[:-1], width, dtype=torch.int64)
        for b, trail in enumerate(self.trails):
            for node, count in enumerate(counts[b].tolist()):
                left = weights[b, node].tolist()
                for turn in range(count):
                    drawn[b, node, turn] = token = trail.throw(left)
                    left[token] = 0.0
        return drawn


def law_of(run, batch=4096):
    """Law of `run(dice, rows) -> rows outcomes`, all rows of which do the same with their own dice."""
    law, pending = defaultdict(float), [()]
    while pending:
        starts, pending = pending[-batch:], pending[:-batch]
        dice = EnumeratingDice(starts)
        for outcome, trail in zip(run(dice, len(starts)), dice.trails, strict=True):
            law[outcome] += trail.probability
            pending += trail.forks
    assert abs(sum(law.values()) - 1) < 1e-10
    return law


def plain_law_of(run):
    """Law of `run(dice) -> outcome`."""
    law, pending = defaultdict(float), [()]
    while pending:
        dice = PlainEnumeratingDice(pending.pop())
        law[run(dice)] += dice.probability
        pending += dice.forks
    assert abs(sum(law.values()) - 1) < 1e-10
    return law
