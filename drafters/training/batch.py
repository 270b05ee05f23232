"""From sequences to one padded training batch: anchors, block slots, attention mask and labels.

For an anchor position a (a response token that has no feature yet) the head sees the taps of positions < a
and the block [token a, MASK, MASK, ...] at positions a, a+1, ...; slot k >= 1 is labelled with token a+k,
and the teacher is the target's distribution after position a+k-1.

Depth weights exp(-(k-1)/gamma) are applied by sampling instead of multiplying: an anchor's block is cut
after slot k with the probability that makes slot k appear with exactly that weight. The expectation of the
loss is the same, and slots nobody would have learned much from are never computed (gamma 4, block 8: 4.7
slots instead of 8). Only a causal head may do so, since its slots do not see the ones cut off; a
bidirectional one gets full blocks and real weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..head_config import HeadConfig
from .shards import Sequence


@dataclass(frozen=True)
class Batch:
    """b sequences, T context tokens, S slots (padded), R labelled slots."""

    taps: Tensor  # [b, T, K*H] bfloat16
    block_ids: Tensor  # [b, S] int64: anchor token or mask
    positions: Tensor  # [b, S] int64, absolute
    mask: Tensor  # [b, S, T+S] bool, True = may attend
    rows: Tensor  # [R] int64 into the flattened [b*S]
    labels: Tensor  # [R] int64
    depths: Tensor  # [R] int64, 1..block_size-1
    weights: Tensor  # [R] float32
    topk_ids: Tensor  # [R, 16] int32
    topk_logprobs: Tensor  # [R, 16] float16
    anchors: int

    def context_positions(self) -> Tensor:
        return torch.arange(self.taps.shape[1]).expand(self.taps.shape[:2])


def depth_weights(block_size: int, gamma: float) -> list[float]:
    """Weight of depth k = 1..block_size-1; gamma 0 is uniform."""
    return [math.exp(-(k - 1) / gamma) if gamma else 1.0 for k in range(1, block_size)]


def sample_anchors(
    sequence: Sequence, count: int, config: HeadConfig, gamma: float, generator: torch.Generator
) -> list[tuple[int, int]]:
    """Up to ``count`` different anchors and their block lengths, (position, slots) by position."""
    candidates = sequence.anchors()
    chosen = torch.randperm(len(candidates), generator=generator)[:count].sort().values.tolist()
    draws = torch.rand(len(chosen), generator=generator).tolist()
    weights = depth_weights(config.block_size, gamma)
    blocks = []
    for index, draw in zip(chosen, draws, strict=True):
        depth = sum(draw < weight for weight in weights) if config.causal else len(weights)
        anchor = candidates[index]
        if config.causal:  # slots past the end have no label; a bidirectional head sees them all the same
            depth = min(depth, len(sequence.tokens) - 1 - anchor)
        blocks.append((anchor, 1 + depth))
    return blocks


def collate(
    sequences: list[Sequence], blocks: list[list[tuple[int, int]]], config: HeadConfig, gamma: float
) -> Batch:
    """Blocks of a sequence side by side; each sees its own context and itself, never another block."""
    context = max(anchor for each in blocks for anchor, _ in each)
    slots = max(sum(length for _, length in each) for each in blocks)
    size = (len(sequences), slots)
    taps = torch.zeros(len(sequences), context, config.tap_width, dtype=torch.bfloat16)
    block_ids = torch.full(size, config.mask_token_id)
    positions = torch.zeros(size, dtype=torch.int64)
    block_of = torch.full(size, -1)  # which block a slot belongs to
    context_len = torch.zeros(size, dtype=torch.int64)
    rows, labels, depths, topk_ids, topk_logprobs = [], [], [], [], []
    for i, (sequence, each) in enumerate(zip(sequences, blocks, strict=True)):
        used = each[-1][0]
        taps[i, :used] = sequence.taps[:used]
        anchors, lengths = (torch.tensor(column) for column in zip(*each, strict=True))
        total = int(lengths.sum())
        depth = torch.arange(total) - (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
        start = anchors.repeat_interleave(lengths)
        positions[i, :total] = start + depth
        context_len[i, :total] = start
        block_of[i, :total] = torch.arange(len(each)).repeat_interleave(lengths)
        block_ids[i, :total][depth == 0] = sequence.tokens[anchors]
        labelled = ((depth > 0) & (start + depth < len(sequence.tokens))).nonzero()[:, 0]
        at = positions[i, labelled]
        rows.append(labelled + i * slots)
        depths.append(depth[labelled])
        labels.append(sequence.tokens[at])
        topk_ids.append(sequence.topk_ids[at - 1])
        topk_logprobs.append(sequence.topk_logprobs[at - 1])
    same_block = (
        block_of[:, :, None] == block_of[:, None, :]
    )  # padding is a block of its own: no row without a key
    if config.causal:
        same_block &= positions[:, :, None] >= positions[:, None, :]
    sees_context = torch.arange(context) < context_len[:, :, None]
    depth_of = torch.cat(depths)
    if config.causal:
        weights = torch.ones(len(depth_of))
    else:
        weights = torch.tensor([0.0, *depth_weights(config.block_size, gamma)])[depth_of]
    return Batch(
        taps=taps,
        block_ids=block_ids,
        positions=positions,
        mask=torch.cat((sees_context, same_block), dim=2),
        rows=torch.cat(rows),
        labels=torch.cat(labels),
        depths=depth_of,
        weights=weights / weights.sum(),
        topk_ids=torch.cat(topk_ids),
        topk_logprobs=torch.cat(topk_logprobs),
        anchors=sum(len(each) for each in blocks),
    )
