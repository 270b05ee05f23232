"""Scoring policies: what the builder adds up along a path to rank nodes.

A policy maps a proposal to *edge scores* `[B, D, W]` fp32: entry (d, w) is what candidate w of row d adds
to its parent's score. The builders only ever add edge scores and keep the largest sums, so that a policy is
tensor algebra on the proposal and never a branch inside a builder.

Contract: edge scores are <= 0 and non-increasing along W. Then a node never outranks its parent or an
earlier sibling, and best-first growth gives the best tree of every size at once.
"""

from collections.abc import Callable

from torch import Tensor

from .proposal import DraftProposal

ScoringPolicy = Callable[[DraftProposal], Tensor]

DEFAULT_SCORING = "accum_logp"


def accum_logp(proposal: DraftProposal) -> Tensor:
    """Path log-probability under the drafter: the paper's default.

    If acceptance follows the drafter's probabilities, the expected number of accepted drafts is the sum of
    path probabilities over the nodes, hence the N most probable nodes are the best tree of N nodes.
    """
    return proposal.logprobs


SCORING: dict[str, ScoringPolicy] = {
    "accum_logp": accum_logp,
}


def scoring_policy(name: str) -> ScoringPolicy:
    """The policy called `name`. Raises ValueError, listing the known names, if there is none."""
    try:
        return SCORING[name]
    except KeyError:
        raise ValueError(f"unknown scoring policy {name!r}; known: {', '.join(sorted(SCORING))}") from None
