"""A drafter of one's own: a block head whose rows are taken at another temperature.

Below 1, rows are sharper and trees grow deep; above 1, they are flatter and trees grow wide. Texts stay the target's.
"""

import torch

from jetspec_sglang.drafters.sglang_models.block import BlockDrafter
from jetspec_sglang.tree import DraftProposal

TEMPERATURE = 0.8


class CooledDrafter(BlockDrafter):
    def propose(
        self,
        anchors: torch.Tensor,
        slots: torch.Tensor,
        batch,
        *,
        entropy: bool = False,
        candidates: int | None = None,
    ) -> DraftProposal:
        return cooled(super().propose(anchors, slots, batch, entropy=entropy, candidates=candidates))


def cooled(proposal: DraftProposal, temperature: float = TEMPERATURE) -> DraftProposal:
    """The same candidates in the same order, which as a row keep their mass: what is behind them isn't known."""
    logprobs = proposal.logprobs
    mass = logprobs.logsumexp(-1, keepdim=True)
    return DraftProposal(
        proposal.token_ids, (logprobs / temperature).log_softmax(-1) + mass.clamp_max(0), proposal.entropy
    )
