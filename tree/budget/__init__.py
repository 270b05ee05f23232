"""How many nodes a round should verify: what they bring, what they cost, and the rule that weighs the two."""

from .adaptive import AdaptiveBudget, Plan
from .bandit import Bandit, Choice
from .calibration import Calibration
from .cost import CostModel, RoundShape, Sample
from .load import UsualGaps, octave_of
from .price import best_width, candidate_widths

__all__ = [
    "AdaptiveBudget",
    "Bandit",
    "Calibration",
    "Choice",
    "CostModel",
    "Plan",
    "RoundShape",
    "Sample",
    "UsualGaps",
    "best_width",
    "candidate_widths",
    "octave_of",
]
