"""Token trees: build, lay out, accept. Engine-free: torch and numba only."""

from .accept import (
    Acceptance,
    Chooser,
    accept_greedy,
    accept_match,
    follow,
    sample,
    walk,
)
from .build import build_tree
from .layout import ancestor_mask, full_mask, positions, retrieve_links
from .proposal import DraftProposal
from .score import DEFAULT_SCORING, SCORING, ScoringPolicy, accum_logp, scoring_policy
from .token_tree import NONE, TokenTree

__all__ = [
    "DEFAULT_SCORING",
    "NONE",
    "SCORING",
    "Acceptance",
    "Chooser",
    "DraftProposal",
    "ScoringPolicy",
    "TokenTree",
    "accept_greedy",
    "accept_match",
    "accum_logp",
    "ancestor_mask",
    "build_tree",
    "follow",
    "full_mask",
    "positions",
    "retrieve_links",
    "sample",
    "scoring_policy",
    "walk",
]
