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
from .accept_sampled import ACCEPTANCES, accept_rejection, accept_traversal, given, post_order
from .build import EXPANSIONS, Expander, build_tree, build_tree_by_path
from .dice import Dice, RandomDice
from .host_values import host_values
from .layout import ancestor_mask, full_mask, positions, retrieve_links
from .missing_law import TargetLaw
from .proposal import DraftProposal
from .sampled import SampledTree, drafting_law, draw_tree, drawable
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
    "TargetLaw",
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
    "drawable",
    "follow",
    "full_mask",
    "given",
    "host_values",
    "positions",
    "post_order",
    "retrieve_links",
    "sample",
    "scoring_policy",
    "walk",
]
