"""Both expansions on the CPU: the heaps of `build_reference`, compiled and batched.

A candidate is one int64 whose numeric order is the ranking: from the highest bits down, its negated key, its
depth, its parent's slot and its rank. The heap is then an array of integers, and comparing two candidates is
one instruction. Scores are not kept in it: parent plus edge gives them again, bit for bit.
"""

from collections.abc import Sequence

import numba
import numpy as np
import torch
from torch import Tensor

from .score import ScoredRows
from .token_tree import TokenTree

RANK_BITS, SLOT_BITS = 8, 12  # as many for the depth as for a slot, and 32 for the key
MAX_WIDTH, MAX_BUDGET = 1 << RANK_BITS, 1 << SLOT_BITS


def build_heap(
    rows: ScoredRows, anchors: Tensor, budget: int, *, sizes: Sequence[int] | Tensor | None, eager: bool
) -> TokenTree:
    """Grow every tree of the batch in one compiled call; O(N log N) a request.

    rows: `[B, D, W]`, on the CPU; anchors `[B]` int64. Request b gets at most `sizes[b]` nodes in N = budget
    slots. Raises ValueError for a width or a budget that the packing has no bits for.
    """
    batch, depth, width = rows.token_ids.shape
    if width > MAX_WIDTH or budget > MAX_BUDGET:
        raise ValueError(
            f"width {width} and budget {budget} must be at most {MAX_WIDTH} and {MAX_BUDGET} on the CPU"
        )
    bonus = torch.zeros(batch, depth) if rows.bonus is None else rows.bonus
    grow = _grow_eager if eager else _grow_optimal
    arrays = grow(
        *(
            field.contiguous().numpy()
            for field in (rows.token_ids, rows.logprobs, rows.edges, bonus, anchors)
        ),
        np.full(batch, budget) if sizes is None else np.asarray(sizes, np.int64),
        budget,
    )
    return TokenTree(*map(torch.from_numpy, arrays))


@numba.njit(cache=True)
def _grow_optimal(token_ids, logprobs, edges, bonus, anchors, sizes, slots):
    batch, levels, width = edges.shape
    tree = _roots(anchors, slots)
    tokens, parents, depths, paths, used = tree
    scores = np.zeros(slots, np.float32)
    # A pop takes one candidate out and puts two in.
    heap = np.empty(slots + 1, np.int64)
    for b in range(batch):
        size, count = 1, _offer(heap, 0, edges[b, 0, 0] + bonus[b, 0], 1, 0, 0)
        while count > 0 and size < sizes[b]:
            best = heap[0]
            rank = best & (MAX_WIDTH - 1)
            parent = (best >> RANK_BITS) & (MAX_BUDGET - 1)
            depth = depths[b, parent] + 1
            row = depth - 1
            tokens[b, size] = token_ids[b, row, rank]
            parents[b, size] = parent
            depths[b, size] = depth
            paths[b, size] = paths[b, parent] + logprobs[b, row, rank]
            scores[size] = scores[parent] + edges[b, row, rank]
            # The next sibling takes the place of the popped node: one walk down the heap instead of two.
            key = np.float32(np.nan)
            if rank + 1 < width:
                key = scores[parent] + edges[b, row, rank + 1] + bonus[b, row]
            if np.isfinite(key):
                _sink(heap, count, _pack(key, depth, parent, rank + 1))
            else:
                count -= 1
                _sink(heap, count, heap[count])
            if depth < levels:
                key = scores[size] + edges[b, depth, 0] + bonus[b, depth]
                count = _offer(heap, count, key, depth + 1, size, 0)
            size += 1
        used[b] = size
    return tree


@numba.njit(cache=True)
def _grow_eager(token_ids, logprobs, edges, bonus, anchors, sizes, slots):
    batch, levels, width = edges.shape
    tree = _roots(anchors, slots)
    tokens, parents, depths, paths, used = tree
    scores = np.zeros(slots, np.float32)
    heap = np.empty(slots, np.int64)
    for b in range(batch):
        size, count, parent = 1, 0, 0
        while size < sizes[b]:
            row = depths[b, parent]
            for rank in range(min(width, sizes[b] - size)):
                key = scores[parent] + edges[b, row, rank] + bonus[b, row]
                if not np.isfinite(key):
                    break
                tokens[b, size] = token_ids[b, row, rank]
                parents[b, size] = parent
                depths[b, size] = row + 1
                paths[b, size] = paths[b, parent] + logprobs[b, row, rank]
                scores[size] = scores[parent] + edges[b, row, rank]
                if row + 1 < levels:  # a leaf at the last depth has nothing to expand
                    count = _offer(heap, count, key, row + 1, size, 0)
                size += 1
            if count == 0:
                break
            parent = (heap[0] >> RANK_BITS) & (MAX_BUDGET - 1)
            count -= 1
            _sink(heap, count, heap[count])
        used[b] = size
    return tree


@numba.njit(cache=True)
def _roots(anchors, slots):
    """The arrays of a `TokenTree`, all padding but the roots."""
    shape = (len(anchors), slots)
    tokens, parents = np.full(shape, -1), np.full(shape, -1)
    depths, logprobs = np.zeros(shape, np.int64), np.full(shape, -np.inf, np.float32)
    tokens[:, 0] = anchors
    logprobs[:, 0] = 0
    return tokens, parents, depths, logprobs, np.zeros(len(anchors), np.int64)


@numba.njit(cache=True)
def _pack(key, depth, parent, rank):
    """A candidate as a number, smallest for the best; numbers of equal candidates don't exist."""
    bits = np.int64(np.float32(-key).view(np.int32))  # a key is a sum that begins with 0, so it is never -0
    if bits < 0:  # floats are sign and magnitude, integers two's complement
        bits ^= 0x7FFFFFFF
    return (((bits << SLOT_BITS | depth) << SLOT_BITS | parent) << RANK_BITS) | rank


@numba.njit(cache=True)
def _offer(heap, count, key, depth, parent, rank):
    """Push a candidate, unless its key says never. Returns the new count."""
    if not np.isfinite(key):
        return count
    item = _pack(key, depth, parent, rank)
    at = count
    while at > 0 and heap[(at - 1) >> 1] > item:
        heap[at] = heap[(at - 1) >> 1]
        at = (at - 1) >> 1
    heap[at] = item
    return count + 1


@numba.njit(cache=True)
def _sink(heap, count, item):
    """Put `item` in the place of the smallest of `count` candidates."""
    at = 0
    while True:
        child = 2 * at + 1
        if child >= count:
            break
        if child + 1 < count:
            child += heap[child + 1] < heap[child]  # added, not branched on: no processor could predict it
        if heap[child] >= item:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = item
