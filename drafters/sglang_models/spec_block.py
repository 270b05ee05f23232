"""Spec-block heads as SGLang serves them: a forward for every K depths, over blocks at several nodes of the trees.

`drafters.spec_block_head` says what is computed, `drafters.spec_block_growth` how rows become trees. All blocks of
a forward are rows of one verify batch behind the committed tokens. A row sees these and its own block up to itself,
so no forward needs what an earlier one left in the scratch slots, and all write to the same ones.
"""

from typing import ClassVar

import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from torch import nn

from jetspec_sglang.tree import DraftProposal

from ..checkpoint_spec_block import ARCHITECTURE, parse_spec_block_config
from ..head_config import SpecBlockConfig
from ..spec_block_expander import Blocks
from ..spec_block_growth import SpecBlockGrowth
from ..spec_block_head import Shift
from .common import run_rows
from .layered import LayeredDrafter, LayeredModel
from .level_input import DraftLevelInput


class SpecBlockModel(LayeredModel):
    """Shifts between the layers, and the rank head. What a block starts from comes as `hidden_states` of its input."""

    def __init__(self, config, quant_config=None, prefix: str = "") -> None:
        head = parse_spec_block_config(config.to_dict(), "the draft head's config")
        config.is_causal = True
        config.dflash_config = {"target_layer_ids": list(head.target_layer_ids)}
        super().__init__(config, quant_config, prefix)
        self.length = head.positions + 1
        self.shifts = nn.ModuleList(Shift(head) for _ in range(head.layers))
        self.rank_head = nn.Linear(head.hidden_size, head.ranks + 1, bias=False)

    @torch.no_grad()
    def forward(self, input_ids, positions, forward_batch, input_embeds=None, pp_proxy_tensors=None):
        """As hidden states what the final norm reads, [blocks * (K + 1), H]; no logits."""
        x = self.forward_embed(input_ids)
        inherited = forward_batch.spec_info.hidden_states[:, None].to(x.dtype)  # [blocks, 1, H]
        for layer, shift in zip(self.layers, self.shifts, strict=True):
            blocks = x.unflatten(0, (-1, self.length))
            previous = torch.cat((inherited, blocks[:, :-1]), dim=1).flatten(0, 1)
            x, residual = layer(positions, x + shift(previous), forward_batch, None)
            x = x + residual
        return LogitsProcessorOutput(next_token_logits=None, hidden_states=x)


class SpecBlockDrafter(LayeredDrafter):
    """Drafts for a batch of requests: `append_context` after each commit, an `expander` each round."""

    models: ClassVar = {ARCHITECTURE: SpecBlockModel}
    frontier = None  # by the time that levels are asked for, all forwards have run
    head: SpecBlockConfig

    def expander(
        self,
        slots: torch.Tensor,
        batch,
        *,
        width: int,
        depth: int,
        budget: int,
        entropy: bool = False,
    ) -> SpecBlockGrowth:
        """For the trees of one round; see `contract.PathDrafter`."""

        def forward(tokens: torch.Tensor, depths: torch.Tensor, inherited: torch.Tensor) -> torch.Tensor:
            return self._blocks(slots, batch, tokens, depths, inherited)

        return SpecBlockGrowth(Blocks(self.head, forward, self._rows, width, entropy), depth, budget)

    @torch.inference_mode()
    def _blocks(
        self,
        slots: torch.Tensor,
        batch,
        tokens: torch.Tensor,
        depths: torch.Tensor,
        inherited: torch.Tensor,
    ) -> torch.Tensor:
        """As `spec_block_expander.Forward` says; slots [B, L] int64 as `expander` gets them."""
        (requests, nodes), length = tokens.shape, self.head.positions + 1
        ids = tokens[..., None].repeat(1, 1, length)
        ids[..., 1:] = self.head.mask_token_id
        below = depths[..., None] + torch.arange(length, device=tokens.device)
        level = DraftLevelInput.of(
            ids.flatten(1),
            inherited,
            self.positions(batch.seq_lens[:, None] + below.flatten(1)),
            own_blocks(nodes, length, tokens.device).expand(requests, -1, -1),
            batch.seq_lens,
            batch.seq_lens_sum,
            first_is_seen=True,
        )
        rows = run_rows(self.runner, batch, level, slots[:, : nodes * length]).hidden_states
        return rows.view(requests, nodes, length, -1)[:, :, 1:]

    @torch.inference_mode()
    def _rows(self, outputs: torch.Tensor, kept: int, entropy: bool) -> tuple[DraftProposal, torch.Tensor]:
        """As `spec_block_expander.Rows` says."""
        normed = self.model.norm(outputs.flatten(0, 1)).view(outputs.shape)
        return self.candidates(normed, kept, entropy), self.model.rank_head(normed).float()


def own_blocks(blocks: int, length: int, device: torch.device) -> torch.Tensor:
    """Which of a request's rows each sees, [rows, rows] bool: those of its own block up to itself."""
    row = torch.arange(blocks * length, device=device)
    return (row[:, None] // length == row // length) & (row[:, None] >= row)
