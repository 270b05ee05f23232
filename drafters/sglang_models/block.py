"""One-pass heads as SGLang serves them: one forward over `[anchor, MASK, …]`, one row of candidates a depth.

Causal parallel and diffusion heads differ in what a slot of the block sees, which the head's config says. The rows
are shared by all nodes of their depth, unless the head has a path corrector, which makes a row for each node of
them.
"""

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import nn

from jetspec_sglang.tree import DraftProposal

from ..checkpoint_block import ARCHITECTURE, parse_block_config
from ..checkpoint_corrector import TREEFLASH, our_names
from ..head_config import HeadConfig
from ..path_corrector import make_corrector
from ..path_expander import CorrectedExpander, candidates_needed
from ..treeflash_corrector import TreeFlashCorrector
from .block_input import DraftBlockInput
from .common import run_rows
from .layered import LayeredDrafter, LayeredModel


class BlockModel(LayeredModel):
    """Told the truth about causality, with our path corrector if the head has one.

    Published JetSpec heads say `dflash_config.causal_head`, which SGLang does not read: it would run them
    bidirectionally, silently.
    """

    def __init__(self, config, quant_config=None, prefix: str = "") -> None:
        head = parse_block_config(config.to_dict(), "the draft head's config")
        config.is_causal = head.causal
        if head.corrector is not None:  # SGLang would make a Domino head's modules, too
            config.dflash_config = config.dflash_config | {"projector_type": None}
        super().__init__(config, quant_config, prefix)
        self.path_corrector = None if head.corrector is None else make_corrector(head)
        if self.path_corrector is not None and self.path_corrector.reads_residual:
            self.norm.register_forward_hook(self._keep_residual)

    def _keep_residual(self, _norm: nn.Module, _inputs: tuple, output: tuple) -> None:
        self.residual = output[1]  # [rows, H], with what the last layer added to it

    def share(self, embedding: nn.Module, lm_head: Any) -> None:
        super().share(embedding, lm_head)
        if isinstance(self.path_corrector, TreeFlashCorrector):
            self.path_corrector.share(self.norm.weight, lambda ids: lm_head.weight[ids])

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]):
        super().load_weights(our_names(weights))


class BlockDrafter(LayeredDrafter):
    """Drafts for a batch of requests: `append_context` after each commit, and each round `propose`, or an `expander`
    where the head has a path corrector.

    A causal block's first rows don't depend on its length, so rows that no tree can use are not run.
    """

    models: ClassVar = {ARCHITECTURE: BlockModel, TREEFLASH: BlockModel}
    frontier = None  # a node costs no forward
    head: HeadConfig

    @torch.inference_mode()
    def propose(
        self,
        anchors: torch.Tensor,
        slots: torch.Tensor,
        batch,
        *,
        entropy: bool = False,
        candidates: int | None = None,
    ) -> DraftProposal:
        """Candidates for the first L - 1 depths below `anchors` [B] int64.

        slots: [B, L] int64, as many as `slots` says, reserved ones behind the committed prefix; the block's K/V
        is scratch there, overwritten by the next `append_context`.
        """
        kept = min(candidates or self.width, self.head.vocab_size)
        return self.candidates(self._block(anchors, slots, batch), kept, entropy)

    def expander(
        self,
        slots: torch.Tensor,
        batch,
        *,
        width: int,
        depth: int,
        budget: int,
        entropy: bool = False,
    ) -> "CorrectedBlock":
        """For the trees of one round; see `contract.PathDrafter`."""
        return CorrectedBlock(self, slots, batch, width, entropy)

    def _block(self, anchors: torch.Tensor, slots: torch.Tensor, batch) -> torch.Tensor:
        """The head's outputs [B, L - 1, H] for the depths below `anchors`; the other arguments are `propose`'s."""
        length = slots.shape[1]
        block = anchors[:, None].repeat(1, length)
        block[:, 1:] = self.head.mask_token_id
        positions = self.positions(batch.seq_lens[:, None] + torch.arange(length, device=anchors.device))
        rows = run_rows(self.runner, batch, DraftBlockInput.of(block, positions), slots)
        return self._drafted(rows.hidden_states, length)

    def _drafted(self, rows: torch.Tensor, length: int) -> torch.Tensor:
        """Of rows [B * L, H] those that draft a depth, [B, L - 1, H]."""
        rows = rows.view(-1, length, rows.shape[-1])
        return rows[:, :-1] if self.head.shifted else rows[:, 1:]


class CorrectedBlock:
    """`tree.Expander` of one round: the block's forward when the anchors come, then rows for each node."""

    def __init__(self, drafter: BlockDrafter, slots: torch.Tensor, batch, width: int, entropy: bool) -> None:
        self.drafter, self.slots, self.batch = drafter, slots, batch
        self.width, self.entropy = width, entropy

    @torch.inference_mode()
    def __call__(self, tokens: torch.Tensor, parents: torch.Tensor, depth: int) -> DraftProposal:
        if depth == 0:
            self.rows = self._rows(tokens[:, 0])
        return self.rows(tokens, parents, depth)

    def _rows(self, anchors: torch.Tensor) -> CorrectedExpander:
        drafter, corrector = self.drafter, self.drafter.model.path_corrector
        hidden = drafter._block(anchors, self.slots, self.batch)
        kept = candidates_needed(corrector, self.width, drafter.head.vocab_size)
        block = drafter.candidates(hidden, kept, self.entropy)
        if corrector.reads_residual:
            hidden = drafter._drafted(drafter.model.residual, self.slots.shape[1])
        return CorrectedExpander(corrector, drafter.model.forward_embed, hidden, block, self.width)
