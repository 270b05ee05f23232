"""The optimal prefix tree in tensor operations: level by level, no wait for the device.

A node among the best N of the whole tree is among the best N of its depth, and so is its parent. It is
enough, then, to carry the best N nodes of each depth to the next (F x W candidates), and to take the best N
of all depths at the end. Shapes depend on B, D, W and N alone, hence the whole build can be captured in a
CUDA graph.

Stable sorts realise the tie rules of `build_reference`: candidates are laid out by parent and then rank, and
levels are concatenated by depth, so that equal scores stay in that order.
"""

import torch
from torch import Tensor

from .token_tree import NONE, TokenTree


def build_levels(token_ids: Tensor, edge_scores: Tensor, anchors: Tensor, budget: int) -> TokenTree:
    """Grow every tree of the batch; any device.

    token_ids, edge_scores: `[B, D, W]` int64 and fp32; anchors `[B]` int64. Like -inf, NaN is never drafted.
    """
    batch, levels, width = edge_scores.shape
    # A sort would put NaN first, above every real candidate.
    edge_scores = torch.where(edge_scores.isfinite(), edge_scores, float("-inf"))

    score = edge_scores.new_zeros(batch, 1)
    tokens, scores, parents = [anchors[:, None]], [score], [torch.full_like(anchors[:, None], NONE)]
    level_sizes, level_start = [1], 0  # level_start: where the frontier begins in the concatenation
    for row in range(levels):
        candidates = (score[:, :, None] + edge_scores[:, row, None, :]).flatten(1)
        score, order = candidates.sort(dim=1, descending=True, stable=True)
        kept = min(budget - 1, candidates.shape[1])
        score, order = score[:, :kept], order[:, :kept]
        tokens.append(token_ids[:, row].gather(1, order % width))
        scores.append(score)
        parents.append(level_start + order // width)
        level_start += level_sizes[-1]
        level_sizes.append(kept)

    device = edge_scores.device
    depth = torch.cat([torch.full((size,), d, device=device) for d, size in enumerate(level_sizes)])
    score, order = torch.cat(scores, 1).sort(dim=1, descending=True, stable=True)
    slot_of = torch.empty_like(order).scatter_(
        1, order, torch.arange(order.shape[1], device=device).expand_as(order)
    )
    parent = torch.cat(parents, 1)
    parent = torch.where(parent >= 0, slot_of.gather(1, parent.clamp(min=0)), NONE)
    columns = (torch.cat(tokens, 1), parent, depth.expand_as(order))

    order, score = order[:, :budget], score[:, :budget]
    drafted = score > float("-inf")
    padding = (0, budget - order.shape[1])
    pad = torch.nn.functional.pad
    token, parent, depth = (
        pad(torch.where(drafted, column.gather(1, order), fill), padding, value=fill)
        for column, fill in zip(columns, (NONE, NONE, 0), strict=True)
    )
    return TokenTree(token, parent, depth, pad(score, padding, value=float("-inf")), drafted.sum(1))
