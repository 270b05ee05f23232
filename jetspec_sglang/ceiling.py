"""Is it the block or the budget that limits a drafter?

A round can't accept more than the drafts of a block. Rounds that would have gone further all end there, so the
acceptance histogram has a spike in its last bin when the block is too short: then a longer block, not a larger
tree, is what would help ("ceiling-clipped" histograms, arXiv 2608.30427).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

SPIKE = 2.0


@dataclass(frozen=True)
class Ceiling:
    """What a histogram says about the block's end.

    depth:    drafts of a whole block.
    rounds:   rounds counted.
    share:    of the rounds, how many accepted the whole block; None without rounds.
    expected: what share the decay of the bins below predicts; None without rounds.
    spike:    `share` is more than `SPIKE` times `expected`, and by more than chance (two standard deviations
              of a Poisson count).
    """

    depth: int
    rounds: int
    share: float | None
    expected: float | None
    spike: bool

    def sentence(self) -> str:
        if self.share is None or self.expected is None:
            return "No rounds were counted."
        drafts = "1 draft" if self.depth == 1 else f"{self.depth} drafts"
        return (
            f"{self.share:.1%} of {self.rounds} rounds accepted the whole block of {drafts}; "
            f"the decay of shorter ones predicts {self.expected:.1%}: "
            + ("a spike, so a longer block would accept more." if self.spike else "no spike.")
        )


def ceiling(histogram: Mapping[int, int] | Mapping[str, int], depth: int) -> Ceiling:
    """How often the whole block was accepted, and whether that is a spike.

    The decay is one ratio for all bins below the last, the geometric law's: the sum of bins 1 … depth-1 over
    the sum of bins 0 … depth-2, at most 1. The prediction is the last bin but one times this ratio, so the
    decay is taken from all rounds and its level from where the ceiling is. A geometric law that goes on at each
    depth with probability p fills the last bin 1 / (1 - p) times as high as the prediction: it counts as a
    spike (`SPIKE` = 2) where a round that got to the end would more likely than not have gone on.

    Args:
        histogram: rounds by accepted drafts, the bonus token not counted; keys may be text, as in JSON.
        depth: drafts of a whole block, >= 1: the most that a round can accept.

    Raises:
        ValueError: `depth` < 1, or a bin outside 0 … depth.
    """
    counts = {int(drafts): rounds for drafts, rounds in histogram.items()}
    if depth < 1:
        raise ValueError(f"depth is {depth}; a block has at least one draft")
    if outside := [drafts for drafts in counts if not 0 <= drafts <= depth]:
        raise ValueError(f"a round accepted {outside[0]} drafts, but a block has {depth}")
    bins = [counts.get(drafts, 0) for drafts in range(depth + 1)]
    rounds, whole = sum(bins), bins[depth]
    if not rounds:
        return Ceiling(depth, 0, None, None, False)
    before, after = sum(bins[: depth - 1]), sum(bins[1:depth])
    decay = after / before if after < before else 1.0
    predicted = bins[depth - 1] * decay
    spike = whole > SPIKE * predicted and whole > predicted + 2 * sqrt(max(predicted, 1))
    return Ceiling(depth, rounds, whole / rounds, predicted / rounds, spike)
