"""The randomness of sampled trees, behind two operations.

Drawing and verifying ask for nothing else. So the code that serves can be run with dice that go through every
outcome instead of throwing, and its law is then known exactly (`tests/tree/enumerating_dice.py`).
"""

from typing import Protocol

import torch
from torch import Tensor

from .accept import sample


class Dice(Protocol):
    """Weights are >= 0 and need not sum to 1; every row throws independently of the others."""

    def draw(self, weights: Tensor) -> Tensor:
        """One index a row: `[..., K]` with a positive sum -> `[...]` int64. Weight 0 is never drawn."""

    def order(self, weights: Tensor, counts: Tensor, width: int) -> Tensor:
        """Draws without replacement: `[..., K]`, `[...]` -> `[..., width]` int64, first draw first.

        The first `counts` entries of a row are such draws, and a row has at least that many positive weights;
        the entries behind them are any indices.
        """


class RandomDice:
    """Dice of a torch generator, which must live on the device of the weights; None is torch's default one."""

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self.generator = generator

    def draw(self, weights: Tensor) -> Tensor:
        shape, device = weights.shape[:-1], weights.device
        return sample(
            weights, torch.rand(shape, dtype=torch.float64, device=device, generator=self.generator)
        )

    def order(self, weights: Tensor, counts: Tensor, width: int) -> Tensor:
        """An exponential race, which is the Gumbel top-k trick without its logarithms.

        If index k arrives after a time of rate `weights[k]`, then the order of arrival is that of draws
        without replacement. One pass, whatever the width, and nothing to wait for. fp64, because fp32 has
        too few different small times and would lose unlikely tokens.
        """
        times = torch.empty(weights.shape, dtype=torch.float64, device=weights.device)
        times = times.exponential_(generator=self.generator) / weights
        return times.topk(width, largest=False).indices
