"""The optimal prefix tree on the CPU: the heap of `build_reference`, compiled and batched."""

import heapq

import numba
import numpy as np
import torch
from torch import Tensor

from .token_tree import TokenTree


def build_heap(token_ids: Tensor, edge_scores: Tensor, anchors: Tensor, budget: int) -> TokenTree:
    """Grow every tree of the batch in one compiled call.

    token_ids, edge_scores: `[B, D, W]` int64 and fp32, on the CPU; anchors `[B]` int64. O(N log N) a request.
    """
    arrays = _grow(
        token_ids.contiguous().numpy(), edge_scores.contiguous().numpy(), anchors.contiguous().numpy(), budget
    )
    return TokenTree(*(torch.from_numpy(array) for array in arrays))


@numba.njit(cache=True)
def _grow(token_ids, edge_scores, anchors, budget):
    batch, levels, width = edge_scores.shape
    tokens = np.full((batch, budget), -1, np.int64)
    parents = np.full((batch, budget), -1, np.int64)
    depths = np.zeros((batch, budget), np.int64)
    logprobs = np.full((batch, budget), -np.inf, np.float32)
    sizes = np.zeros(batch, np.int64)
    for b in range(batch):
        # Tuples compare in the order of the ranking rules: score, depth, parent, rank.
        heap = [(np.float32(0), 0, -1, 0)]
        size = 0
        while len(heap) > 0 and size < budget:
            negated, depth, parent, rank = heapq.heappop(heap)
            tokens[b, size] = token_ids[b, depth - 1, rank] if depth > 0 else anchors[b]
            parents[b, size] = parent
            depths[b, size] = depth
            # Stored as fp32 and read back: sums must round as in the other builders. (0 - 0 is 0, not -0.)
            logprobs[b, size] = 0.0 - negated
            if depth > 0 and rank + 1 < width:
                score = logprobs[b, parent] + edge_scores[b, depth - 1, rank + 1]
                if np.isfinite(score):
                    heapq.heappush(heap, (-score, depth, parent, rank + 1))
            if depth < levels:
                score = logprobs[b, size] + edge_scores[b, depth, 0]
                if np.isfinite(score):
                    heapq.heappush(heap, (-score, depth + 1, size, 0))
            size += 1
        sizes[b] = size
    return tokens, parents, depths, logprobs, sizes
