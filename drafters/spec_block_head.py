"""The SpecBlock draft head in plain torch: blocks of K positions, each of which knows the one before it.

It is both the model that is trained and the oracle for the served one. The idea is SpecBlock's: one forward
drafts K dependent positions, blocks go on from one another, and a rank head says how widely to branch. What the
abstract leaves open is filled in here as simply as could be, and is ours:

    block     reads K + 1 slots, [token, MASK, MASK, ...], where the token is the anchor or a drafted one; as in
              `causal_head` slot j = 1 .. K predicts the token AT slot j, and slot 0 predicts nothing. So a causal
              head is a spec-block head whose shifts add nothing
    attention the committed context, as in `causal_head`, and the block's own earlier slots; no other block
    shift     at each layer, input of j += proj(norm(h of j-1)), h being that layer's input before its shift, so that
              all slots of a block are still computed at once
    start     the first slot of a block has, as h before it, at every layer the last layer's output of the position
              that its token was drafted from; the block of the anchor has zeros
    ranks     a linear layer on a position's normed output: offsets to the log-probabilities that the target's token is
              the position's candidate of rank 1 .. R, or none of them; `spec_block_expander` says what becomes of them

Letters in shapes: b batch, N blocks, K positions that draft, S slots, T context tokens, A anchors, H hidden, R ranks.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from .autoregressive_head import additive
from .causal_head import ContextKV, LayeredHead
from .head_config import SpecBlockConfig
from .rms_norm import RMSNorm


class Shift(nn.Module):
    """What a position adds to the next one's input."""

    def __init__(self, config: SpecBlockConfig) -> None:
        super().__init__()
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, previous: Tensor) -> Tensor:
        return self.proj(self.norm(previous))


class SpecBlockHead(LayeredHead):
    """`state_dict()` is what a checkpoint holds."""

    def __init__(self, config: SpecBlockConfig) -> None:
        super().__init__(config)
        self.config = config
        self.shifts = cast(list[Shift], nn.ModuleList(Shift(config) for _ in range(config.layers)))
        self.rank_head = nn.Linear(config.hidden_size, config.ranks + 1, bias=False)

    def forward(
        self,
        starts: Tensor,
        mask_embedding: Tensor,
        positions: Tensor,
        context: ContextKV,
        seen: Tensor,
        inherited: Tensor,
    ) -> Tensor:
        """Run N blocks side by side -> what the final norm reads for the K tokens behind each, [b, N, K, H].

        starts [b, N, H]: embeddings of the blocks' first tokens; mask_embedding [H]; positions [b, N] int: of those
        tokens; context: as `context_kv` gives it; seen [b, N, T] bool: what of it a block may attend to; inherited
        [b, N, H]: what `forward` gave for the positions that the blocks start from, zeros for the anchor's.
        """
        blocks, length = positions.shape[1], self.config.positions + 1
        masks = mask_embedding.expand(*positions.shape, length - 1, -1)
        slots = torch.cat((starts[:, :, None], masks), dim=2).flatten(1, 2)
        offsets = torch.arange(length, device=slots.device)
        past = torch.ones(length, length, dtype=torch.bool, device=slots.device).tril()
        own = torch.block_diag(*[past] * blocks)
        mask = torch.cat((seen.repeat_interleave(length, 1), own.expand(len(seen), -1, -1)), dim=-1)
        at = (positions[..., None] + offsets).flatten(1)
        first = (offsets == 0).repeat(blocks)[None]
        out = self.residual(slots, at, context, mask, first, inherited.repeat_interleave(length, 1))
        return out.unflatten(1, (blocks, length))[:, :, 1:]

    def residual(
        self,
        embeddings: Tensor,
        positions: Tensor,
        context: ContextKV,
        mask: Tensor,
        first: Tensor,
        inherited: Tensor,
    ) -> Tensor:
        """What the final norm reads of slots of several blocks, one block after another, [b, S, H].

        embeddings [b, S, H]; positions [b, S] int; mask [b, S, T + S] bool, True = may attend; first [b or 1, S] bool:
        which slots begin a block; inherited [b, S, H]: what their blocks start from, of no use elsewhere.
        """
        x, rope = embeddings, self.rope(positions)
        bias = additive(mask, context[0][1].dtype)[:, None]
        for layer, shift, kv in zip(self.layers, self.shifts, context, strict=True):
            previous = torch.where(first[..., None], inherited.to(x.dtype), x.roll(1, dims=1))
            x = layer(x + shift(previous), rope, kv, bias)
        return x

    def unroll(
        self, taps: Tensor, embeddings: Tensor, mask_embedding: Tensor, anchors: Tensor, depth: int
    ) -> Tensor:
        """What the head would say along the true text, all anchors at once: [b, A, depth, H], `forward`'s outputs.

        taps [b, n, K*H] and embeddings [b, n, H] of whole texts; anchors [b, A] int64, positions in them. Entry k - 1
        of anchor a predicts token a + k. Every block goes on from the last position of the one before it, with the
        text's token, as a chain of likeliest tokens is drafted; trees and training have blocks from any position.
        Padding behind a text is not looked at; entries that would read past the end are of no use.
        """
        where = torch.arange(taps.shape[1], device=taps.device)
        context = self.context_kv(taps, where[None])
        seen, last = where < anchors[..., None], embeddings.shape[1] - 1
        inherited, outputs = torch.zeros_like(embeddings[:, :1]).expand(-1, anchors.shape[1], -1), []
        for done in range(0, depth, self.config.positions):
            rows = (anchors + done).clamp(max=last)[..., None].expand_as(inherited)
            block = self(embeddings.gather(1, rows), mask_embedding, anchors + done, context, seen, inherited)
            inherited = block[:, :, -1]
            outputs.append(block)
        return torch.cat(outputs, dim=2)[:, :, :depth]
