"""What the JetSpec paper (arXiv 2606.18394) and its website report, to stand beside our own numbers.

Qwen3-8B with its head of block size 16, eager expansion with width 7, accum_logp, batch 1. τ counts the bonus
token, as ours does. Other model, other hardware, other baseline (plain decoding of that engine): shapes can be
compared, heights can't.
"""

from dataclasses import dataclass
from statistics import mean

MODEL = "Qwen3-8B, block 16, eager, width 7, batch 1"

BENCHMARKS = ("GSM8K", "MATH-500", "AIME25", "HumanEval", "MBPP", "LCB", "MT-Bench")

# fmt: off
# By temperature and budget: (speed-up, τ) for each of BENCHMARKS.
JETSPEC = {
    0: {
        64: ((5.98, 6.56), (6.76, 7.42), (6.47, 7.00), (5.53, 6.06), (5.34, 5.88), (5.95, 6.59), (3.97, 4.77)),
        128: ((7.34, 8.05), (8.93, 9.95), (8.26, 9.10), (6.66, 7.28), (6.31, 6.95), (7.29, 8.21), (4.37, 5.52)),
        256: ((7.82, 8.62), (9.64, 10.76), (8.78, 9.82), (7.12, 7.78), (6.73, 7.43), (7.67, 8.79), (4.58, 5.94)),
    },
    1: {
        64: ((5.63, 6.19), (5.97, 6.60), (4.95, 5.48), (5.02, 5.52), (5.00, 5.51), (5.76, 6.38), (3.63, 4.37)),
        128: ((6.76, 7.49), (7.39, 8.36), (5.76, 6.49), (5.82, 6.39), (5.78, 6.39), (6.84, 7.74), (3.99, 5.01)),
        256: ((7.16, 8.03), (7.83, 9.01), (5.94, 7.06), (6.19, 6.85), (6.11, 6.83), (7.25, 8.29), (4.06, 5.22)),
    },
}
# fmt: on

# Speed-up by α of hybrid scoring: 0 is accum_logp, infinity entropy alone. Up to 1 only the range is given.
SPEEDUP_OF_ALPHA = {0.0: 8.15, 8.0: 7.42, float("inf"): 4.76}
SPEEDUP_UP_TO_ALPHA_1 = (8.15, 8.27)
TAU_OF_ALPHA = {0.0: 9.81}


@dataclass(frozen=True)
class TreeQuality:
    """Appendix A.3: rank-1 branches of 50 MATH-500 prompts. `gamma` is the depth weighting of the training loss."""

    head: str
    gamma: int
    extreme: float  # share of gaps of 80 nats and more
    faithful: float  # share of gaps below 5 nats
    accepted: float | None  # mean accepted length, where it is given


TREE_QUALITY = (
    TreeQuality("causal", 0, extreme=0.00, faithful=0.42, accepted=9.46),
    TreeQuality("diffusion", 0, extreme=0.26, faithful=0.06, accepted=4.84),
    TreeQuality("diffusion", 7, extreme=0.04, faithful=0.26, accepted=None),
)
# Of the heads with γ = 0: prompts on which diffusion's gap is the larger one, and its median gap over causal's.
GAP_EXCEEDS, GAP_RATIO = 0.92, 5.0
ACCEPTED_RATIO = 1.95  # causal over diffusion

# Appendix G: cost of a drafted token in target passes, by drafted tokens, at a context of 1024 (for 2 drafted tokens
# the paper names no context). One H200 NVL.
DRAFT_COST = {2: 0.067, 16: 0.00845, 256: 0.00054}
DRAFT_COST_CONTEXT = 1024


def means(temperature: float) -> dict[int, tuple[float, float]] | None:
    """(speed-up, τ) by budget, mean of the benchmarks; None for a temperature that the paper has not."""
    if temperature not in JETSPEC:
        return None
    return {
        budget: (mean(speed for speed, _ in cells), mean(tau for _, tau in cells))
        for budget, cells in JETSPEC[int(temperature)].items()
    }
