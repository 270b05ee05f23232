"""Numbers of appendix A from raw rounds: how far a head's first choice is from the target, and what it gets accepted.

The gap of a branch is its draft joint minus its target joint, in nats. The paper calls a head's first choice
faithful where the gap is below 5, and counts gaps of 80 and more as the extreme tail, both for 15 drafted tokens.
Blocks differ in length, so the same thresholds are also applied per drafted token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, median

from .rows import Draft, Measured

EXTREME, FAITHFUL, PAPERS_DRAFTED = 80.0, 5.0, 15


@dataclass(frozen=True)
class Gaps:
    """One head's rank-1 branches over all rounds. Shares are of rounds; accept lengths count the bonus token."""

    head: str
    drafted: int
    rounds: int
    median: float
    extreme: float
    faithful: float
    token_median: float
    token_extreme: float
    token_faithful: float
    rank1_length: float
    tree_length: float


@dataclass(frozen=True)
class Pair:
    """Two heads at the same prefixes, `wider` the one with the larger median gap; gaps are per drafted token."""

    wider: str
    closer: str
    exceeds: float  # share of rounds in which the wider one's gap is the larger one
    ratio: (
        float | None
    )  # of the medians; None where the smaller one is not positive, so that no ratio means anything
    accepted: float  # tree accept length of the closer one over that of the wider one


def rank1_gaps(measured: Measured, head: str) -> list[float]:
    """Gap of the first branch in each round, nats."""
    return _each(measured, head, lambda draft: draft.branches[0].gap)


def gaps(measured: Measured) -> list[Gaps]:
    """Of every head, in their order."""
    return [_gaps(measured, head) for head in measured.heads]


def _gaps(measured: Measured, head: str) -> Gaps:
    found, drafted = rank1_gaps(measured, head), measured.heads[head].drafted
    by_token = [gap / drafted for gap in found]
    return Gaps(
        head=head,
        drafted=drafted,
        rounds=len(found),
        median=median(found),
        extreme=_share(gap >= EXTREME for gap in found),
        faithful=_share(gap < FAITHFUL for gap in found),
        token_median=median(by_token),
        token_extreme=_share(gap >= EXTREME / PAPERS_DRAFTED for gap in by_token),
        token_faithful=_share(gap < FAITHFUL / PAPERS_DRAFTED for gap in by_token),
        rank1_length=1 + fmean(_each(measured, head, lambda draft: draft.branches[0].accepted)),
        tree_length=1 + fmean(_each(measured, head, lambda draft: draft.tree_accepted)),
    )


def pairs(measured: Measured) -> list[Pair]:
    """Of every two heads."""
    summaries = gaps(measured)
    return [
        _pair(measured, *sorted(two, key=lambda each: -each.token_median))
        for two in combinations(summaries, 2)
    ]


def _pair(measured: Measured, wider: Gaps, closer: Gaps) -> Pair:
    rounds = zip(*(rank1_gaps(measured, each.head) for each in (wider, closer)), strict=True)
    positive = closer.token_median > 0
    return Pair(
        wider=wider.head,
        closer=closer.head,
        exceeds=_share(a / wider.drafted > b / closer.drafted for a, b in rounds),
        ratio=wider.token_median / closer.token_median if positive else None,
        accepted=closer.tree_length / wider.tree_length,
    )


def _each(measured: Measured, head: str, value: Callable[[Draft], float]) -> list[float]:
    return [value(each.drafts[head]) for each in measured.rounds]


def _share(values) -> float:
    return fmean(map(float, values))
