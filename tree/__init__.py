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
from .accept_sampled import ACCEPTANCES, accept_rejection, accept_traversal, post_order
from .build import EXPANSIONS, Expander, build_tree, build_tree_by_path
from .dice import Dice, RandomDice
from .layout import ancestor_mask, full_mask, positions, retrieve_links
from .proposal import DraftProposal
from .sampled import SampledTree, drafting_law, draw_tree
from .score import DEFAULT_SCORING, SCORING, Scores, ScoringPolicy, scoring_policy
from .token_tree import NONE, TokenTree

__all__ = [
    "ACCEPTANCES",
    "DEFAULT_SCORING",
    "EXPANSIONS",
    "NONE",
    "SCORING",
    "Acceptance",
    "Chooser",
    "Dice",
    "DraftProposal",
    "Expander",
    "RandomDice",
    "SampledTree",
    "Scores",
    "ScoringPolicy",
    "TokenTree",
    "accept_greedy",
    "accept_match",
    "accept_rejection",
    "accept_traversal",
    "ancestor_mask",
    "build_tree",
    "build_tree_by_path",
    "drafting_law",
    "draw_tree",
    "follow",
    "full_mask",
    "positions",
    "post_order",
    "retrieve_links",
    "sample",
    "scoring_policy",
    "walk",
]
