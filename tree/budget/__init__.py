"""How many nodes a round should verify: what they bring, what they cost, and the rule that weighs the two."""

from .adaptive import AdaptiveBudget, Plan
from .calibration import Calibration
from .cost import CostModel, RoundShape, Sample
from .price import best_width, candidate_widths

__all__ = [
    "AdaptiveBudget",
    "Calibration",
    "CostModel",
    "Plan",
    "RoundShape",
    "Sample",
    "best_width",
    "candidate_widths",
]
