"""A block head's forward through FlexAttention, which never writes the mask of many blocks out.

With A blocks a sequence, a dense mask of [slots, context + slots] is mostly empty, and FlexAttention skips the
empty tiles. It is the same computation as `CausalParallelHead.block_hidden`, and tested against it.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from ..causal_head import CausalParallelHead, ContextKV, rotate
from .batch import Slots


@cache
def _compiled():
    return torch.compile(flex_attention, dynamic=True)


def flex_block_hidden(
    head: CausalParallelHead, embeddings: Tensor, slots: Slots, context_kv: ContextKV, compiled: bool
) -> Tensor:
    """Final-norm output [b, S, H] of the slots; uncompiled it is slow, and runs anywhere."""
    attend = _compiled() if compiled else flex_attention
    context = context_kv[0][0].shape[2]
    mask = _mask(slots, context, head.config.causal)
    x, rope = embeddings, head.rope(slots.positions)
    for layer, (old_k, old_v) in zip(head.layers, context_kv, strict=True):
        attention, normed = layer.self_attn, layer.input_layernorm(x)
        k, v = attention.kv(normed, rope)
        q = rotate(attention.q_norm(attention.split(attention.q_proj(normed))), rope).to(v.dtype)
        k, v = torch.cat((old_k, k), dim=2), torch.cat((old_v, v), dim=2)
        attended = attend(q, k, v, block_mask=mask, enable_gqa=True)
        x = x + attention.o_proj(attended.transpose(1, 2).flatten(2))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return head.norm(x)


def _mask(slots: Slots, context: int, causal: bool):
    """`Slots.mask` as FlexAttention wants it: a function of indices."""

    def may_attend(b, _head, query, key):
        # No operation in place: the compiler takes none here.
        at = (key - context).clamp(min=0)
        block = (key >= context) & (slots.block_of[b, query] == slots.block_of[b, at])
        if causal:
            block = block & (slots.positions[b, query] >= slots.positions[b, at])
        return block | (key < slots.context_len[b, query])

    batch, length = slots.ids.shape
    return create_block_mask(may_attend, batch, None, length, context + length, device=slots.ids.device)
