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
from .build import EXPANSIONS, Expander, build_tree, build_tree_by_path
from .layout import ancestor_mask, full_mask, positions, retrieve_links
from .proposal import DraftProposal
from .score import DEFAULT_SCORING, SCORING, Scores, ScoringPolicy, scoring_policy
from .token_tree import NONE, TokenTree

__all__ = [
    "DEFAULT_SCORING",
    "EXPANSIONS",
    "NONE",
    "SCORING",
    "Acceptance",
    "Chooser",
    "DraftProposal",
    "Expander",
    "Scores",
    "ScoringPolicy",
    "TokenTree",
    "accept_greedy",
    "accept_match",
    "ancestor_mask",
    "build_tree",
    "build_tree_by_path",
    "follow",
    "full_mask",
    "positions",
    "retrieve_links",
    "sample",
    "scoring_policy",
    "walk",
]
