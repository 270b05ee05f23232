"""Both expansions as heaps in plain Python: what the fast builders are tested against.

Nodes are ranked by one total order, best first:

    1. larger key (fp32; `score` says what it is made of);
    2. smaller depth;
    3. earlier parent;
    4. smaller rank in the row.

Rules 2-4 decide ties only, but they decide all of them, and because every builder adds the same fp32 numbers
in the same order, all see the same ties. A heap pops the best node *whose parent has been popped*: where keys
grow along a path, which a bonus can cause, the child comes right after its parent.
"""

import heapq
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .score import ScoredRows
from .token_tree import NONE


class Node(NamedTuple):
    token: int
    parent: int
    depth: int
    logprob: np.float32


class Row(NamedTuple):
    """Candidates for the children of one node, best first: `[W]` each, and the row's bonus."""

    tokens: list[int]
    logprobs: np.ndarray
    edges: np.ndarray
    bonus: np.float32


RowOf = Callable[[list[Node], int], Row | None]
"""The row of the children of a node, given all nodes so far and its slot; None at the last depth."""


def build_reference(row_of: RowOf, anchor: int, budget: int) -> list[Node]:
    """The optimal prefix tree of at most `budget` nodes, root included, for one request.

    One node per pop: emit it, then offer its next sibling and its first child. All other candidates are
    ranked below one of those two, so that the heap always holds the best node that can come next.
    """
    nodes: list[Node] = []
    scores: list[np.float32] = []
    rows: list[Row | None] = []  # of each node's children
    heap: list[tuple[np.float32, int, int, int]] = []

    def offer(parent: int, rank: int) -> None:
        row = rows[parent]
        if row is not None and rank < len(row.tokens):
            key = scores[parent] + row.edges[rank] + row.bonus
            if math.isfinite(key):
                heapq.heappush(heap, (-key, nodes[parent].depth + 1, parent, rank))

    def emit(node: Node, score: np.float32) -> None:
        nodes.append(node)
        scores.append(score)
        rows.append(row_of(nodes, len(nodes) - 1))
        offer(len(nodes) - 1, 0)

    emit(Node(anchor, NONE, 0, np.float32(0)), np.float32(0))
    while heap and len(nodes) < budget:
        _, depth, parent, rank = heapq.heappop(heap)
        row = rows[parent]
        assert row is not None
        logprob = nodes[parent].logprob + row.logprobs[rank]
        emit(Node(row.tokens[rank], parent, depth, logprob), scores[parent] + row.edges[rank])
        offer(parent, rank + 1)
    return nodes


def build_eager_reference(row_of: RowOf, anchor: int, budget: int) -> list[Node]:
    """The paper's tree: each pop adds *all* children of the popped node, as far as the budget goes.

    Slots are in the order in which nodes were added. With W children at a time, a tree of N nodes is at most
    ceil((N - 1) / W) deep, whatever the scores say.
    """
    nodes = [Node(anchor, NONE, 0, np.float32(0))]
    scores = [np.float32(0)]
    heap = [(np.float32(0), 0, 0)]  # (-key, depth, slot): slots are in the order of rules 3 and 4
    while heap and len(nodes) < budget:
        _, depth, parent = heapq.heappop(heap)
        row = row_of(nodes, parent)
        if row is None:
            continue
        for rank in range(len(row.tokens)):
            key = scores[parent] + row.edges[rank] + row.bonus
            if not math.isfinite(key) or len(nodes) == budget:
                break
            heapq.heappush(heap, (-key, depth + 1, len(nodes)))
            nodes.append(
                Node(row.tokens[rank], parent, depth + 1, nodes[parent].logprob + row.logprobs[rank])
            )
            scores.append(scores[parent] + row.edges[rank])
    return nodes


def shared_rows(rows: ScoredRows, request: int) -> RowOf:
    """A one-pass proposal: the row depends on the depth alone. `rows`: `[B, D, W]`, on the CPU."""
    tokens = rows.token_ids[request].tolist()
    logprobs, edges = rows.logprobs[request].numpy(), rows.edges[request].numpy()
    bonus = np.zeros(len(tokens), np.float32) if rows.bonus is None else rows.bonus[request].numpy()
    by_depth = [*map(Row, tokens, logprobs, edges, bonus), None]
    return lambda nodes, slot: by_depth[nodes[slot].depth]
