"""The optimal prefix tree as a heap in plain Python: what the fast builders are tested against.

Every builder ranks nodes by one total order, best first:

    1. larger score (fp32; a child's score is its parent's fp32 score plus its fp32 edge score);
    2. smaller depth;
    3. earlier parent;
    4. smaller rank in the row.

Rules 2-4 decide ties only, but they decide all of them. Rule 2 keeps parents before children even where an
edge scores exactly 0.0, and because a sum is always parent plus edge, in fp32, every builder sees the same
bits and hence the same ties.
"""

import heapq
import math
from typing import NamedTuple

import numpy as np
from torch import Tensor

from .token_tree import NONE


class Node(NamedTuple):
    token: int
    parent: int
    depth: int
    logprob: np.float32


def build_reference(token_ids: Tensor, edge_scores: Tensor, anchor: int, budget: int) -> list[Node]:
    """The best tree of at most `budget` nodes (root included) for one request.

    One node per pop: emit it, then offer its next sibling and its first child. All other candidates are
    ranked below one of those two, so that the heap always holds the best node not yet emitted. The paper's
    builder adds all W children per pop instead, which makes shallow trees at small budgets.

    token_ids, edge_scores: `[D, W]`, int64 and fp32. Raises ValueError on NaN; -inf is never drafted.
    """
    rows, scores = token_ids.tolist(), edge_scores.numpy()
    if np.isnan(scores).any():
        raise ValueError("edge scores contain NaN")
    levels, width = scores.shape
    nodes: list[Node] = []
    heap: list[tuple[np.float32, int, int, int]] = []

    def offer(depth: int, parent: int, rank: int) -> None:
        score = nodes[parent].logprob + scores[depth - 1, rank]
        if math.isfinite(score):
            heapq.heappush(heap, (-score, depth, parent, rank))

    heapq.heappush(heap, (np.float32(0), 0, NONE, 0))
    while heap and len(nodes) < budget:
        negated, depth, parent, rank = heapq.heappop(heap)
        token = rows[depth - 1][rank] if depth else anchor
        nodes.append(Node(token, parent, depth, 0 - negated))  # 0 - 0 is 0, where -0 would stay -0
        if depth and rank + 1 < width:
            offer(depth, parent, rank + 1)
        if depth < levels:
            offer(depth + 1, len(nodes) - 1, 0)
    return nodes
