"""The bandit: which width brings most tokens a second, learnt from rounds alone.

Nothing is measured before the first request and nothing is modelled. A width is an arm, the load (an octave of the
batch) is the context, and each context learns for itself. What an arm is worth is the tokens that a round of it
brings over the seconds that it takes, mean over mean, as rounds differ in length. The means forget: the last `MEMORY`
rounds at a load count, in effect. Seconds are known of the width that ran; tokens also of all narrower ones, as their
trees are the beginning of the one that was verified.

Of the arms the most promising one runs: what it is worth, and what it may be worth beyond that as long as it is
hardly known. That is discounted UCB (Garivier & Moulines 2011, "On Upper-Confidence Bound Policies for Switching
Bandit Problems"), with the worth of the best arm as the unit. Two additions bound what trying costs:

* An arm never tried looks as promising as the one below it, so that widths are climbed as long as climbing pays, and
  none is tried far beyond those that are clearly worse.
* Tries may lose `TRYING` of the time, as what is known says, so after a dear one it takes a while until the next.

**Regret.** With a memory chosen for T rounds and Y changes, discounted UCB stays within O(sqrt(T·Y)·log T) of the best
arm of each moment. This is not claimed here: the memory is fixed, so the regret grows linearly, and the optimism is
smaller than the proof needs. What holds is that trying loses about `TRYING` of the time, besides the first two rounds
of each width and load, and besides mistakes about which width is best. Those are likely among widths whose worth
differs by a few per cent, where they cost as little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MEMORY = 256  # rounds at a load
# Optimism: how unsure the tokens and the seconds of a width are after one round, in shares of the best's worth.
TOKENS_VARY, SECONDS_VARY = 0.15, 0.07
TRYING = 0.02  # of the time, to be lost at most
HICCUP = 4.0  # a round counts as no longer than so many usual ones of its width
FORGOTTEN = 1e-3  # rounds: who remembers less of an arm does not know it


@dataclass(frozen=True)
class Choice:
    """`tried`: not the best width by what is known, but one to be known better."""

    width: int
    tried: bool


class Bandit:
    """State of one server; no clock and no device in it.

    widths: ascending. load: any number that names a context.
    """

    def __init__(self, widths: Sequence[int]) -> None:
        self.widths = tuple(widths)
        self._loads: dict[int, _Arms] = {}

    def choose(self, load: int, most: int) -> Choice:
        """What the next round verifies, of the widths up to `most`."""
        arm, tried = self._arms(load).choose(sum(n <= most for n in self.widths))
        return Choice(self.widths[arm], tried)

    def learn(self, load: int, choice: Choice, tokens: Sequence[float], seconds: float) -> None:
        """A finished round, which took `seconds` > 0 since the one before ended.

        tokens: committed for all its requests by the tree of each width up to the chosen one, ascending.
        """
        self._arms(load).learn(self.widths.index(choice.width), choice.tried, tokens, seconds)

    def known(self) -> dict[int, dict[int, tuple[float, float, float]]]:
        """By load and width: tokens a second, seconds of a round, and how many rounds that is known from."""
        return {
            load: {self.widths[arm]: arms.known(arm) for arm in np.flatnonzero(arms.is_known())}
            for load, arms in sorted(self._loads.items())
        }

    def _arms(self, load: int) -> _Arms:
        return self._loads.setdefault(load, _Arms(len(self.widths)))


class _Arms:
    """Of one load: what rounds of each width took, and what trees of each width brought more than the next narrower
    one, which nearly all rounds tell; sums in which older rounds count for less and less."""

    def __init__(self, count: int) -> None:
        self._trees, self._more, self._rounds, self._seconds = np.zeros((4, count))
        self._warm = np.zeros(count, bool)
        self._debt = 0.0  # seconds that trying has lost beyond what it may

    def is_known(self) -> np.ndarray:
        return self._rounds > FORGOTTEN

    def known(self, arm: int) -> tuple[float, float, float]:
        rounds = float(self._rounds[arm])
        return float(self._worth()[arm]), float(self._seconds[arm]) / rounds, rounds

    def choose(self, count: int) -> tuple[int, bool]:
        """An arm of the first `count`, and whether it is only tried."""
        known, worth = self.is_known()[:count], self._worth()[:count]
        if not known[0]:
            return 0, False
        best = int(worth.argmax())
        if self._debt > 0:
            return best, False
        promise = np.full(count, -math.inf)
        promise[known] = worth[known] + worth[best] * self._doubt()[:count][known]
        for arm in np.flatnonzero(~known):
            if known[arm - 1]:
                promise[arm] = promise[arm - 1]
        arm = max(range(count), key=lambda arm: (promise[arm], not known[arm]))
        return arm, arm != best

    def learn(self, arm: int, tried: bool, tokens: Sequence[float], seconds: float) -> None:
        if not self._warm[arm]:  # the first round of a shape may compile, fill caches, grow pools
            self._warm[arm] = True
            return
        if self.is_known()[arm]:
            seconds = min(seconds, HICCUP * self._seconds[arm] / self._rounds[arm])
        for sums in (self._trees, self._more, self._rounds, self._seconds):
            sums *= 1 - 1 / MEMORY
        self._trees[: arm + 1] += 1
        self._more[: arm + 1] += np.diff(tokens, prepend=0)
        self._rounds[arm] += 1
        self._seconds[arm] += seconds
        worth = self._worth()
        lost = seconds * (1 - worth[arm] / worth.max()) if tried else 0.0
        self._debt = max(0.0, self._debt + lost - TRYING * seconds)

    def _worth(self) -> np.ndarray:
        """Tokens a second; 0 where unknown."""
        known = self.is_known()
        more = np.divide(self._more, self._trees, out=np.zeros(len(known)), where=self._trees > 0)
        brought = more.cumsum() * self._rounds
        return np.divide(brought, self._seconds, out=np.zeros(len(known)), where=known)

    def _doubt(self) -> np.ndarray:
        """How much more an arm may be worth, relative to the best; of use where it is known."""
        seen = math.log(max(1.0, self._rounds.sum()))
        few = np.maximum(FORGOTTEN, [self._trees, self._rounds])
        return np.array([TOKENS_VARY, SECONDS_VARY]) @ np.sqrt(seen / few)
