"""From places where the text stood before to a tree of what may come next.

Each place votes for what followed it. A vote weighs the square of the match: the number of tokens in front of it
that agree with the text, those of the branch itself included, so that a match grows as a branch is followed. Of the
votes at a node, a child's share times m / (m + 1) is the claim that it comes next, m the longest match that votes
for it: the rule of succession for a context that has been right m times. Claims are corrected by what became of
earlier ones with a match as long and a share as large (`tree.tally`), and the nodes likeliest to be accepted, all
the way from the root, are the tree.
"""

from typing import NamedTuple

import numba
import numpy as np

from jetspec_sglang.tree.tally import CERTAIN, IMPOSSIBLE

from .index import LONGEST

MATCHES = np.array([2, 3, 5, 9, 17])  # where the classes of matches begin, the first holds 1 alone
SHARES = np.array([0.25, 0.5, 0.75, 0.95])
CELLS = (len(MATCHES) + 1) * (len(SHARES) + 1)


class Branches(NamedTuple):
    """A tree of one request as `TokenTree` has it, N slots with the root in slot 0, and what its nodes claim."""

    tokens: np.ndarray  # [N] int64
    parent: np.ndarray  # [N] int64
    depth: np.ndarray  # [N] int64
    logprob: np.ndarray  # [N] fp32, of the chance to be accepted
    claim: np.ndarray  # [N] fp64, that the node follows its parent
    cell: np.ndarray  # [N] int64, the claim's kind


def grow(anchor: int, after: np.ndarray, matches: np.ndarray, factors: np.ndarray, most: int) -> Branches:
    """The best tree of at most `most` nodes, root included.

    after: [K, D] int32, what followed each place, -1 from its end on; matches: [K] int64, 1 or more; factors:
    [CELLS], a `Tally`'s.
    """
    return Branches(*_grow(anchor, after, matches, factors, most))


@numba.njit(cache=True)
def _class(bounds, value):
    """How many of the bounds, rising, are at most `value`."""
    found = 0
    while found < len(bounds) and bounds[found] <= value:
        found += 1
    return found


@numba.njit(cache=True)
def _grow(anchor, after, matches, factors, most):
    voters, depths = after.shape
    room = 1 + voters * depths
    tokens, parent, depth = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64)
    first, sibling = np.empty(room, np.int64), np.empty(room, np.int64)  # children as linked lists
    votes, longest, total = np.zeros(room), np.zeros(room, np.int64), np.zeros(room)  # total: of its children
    tokens[0], parent[0], depth[0], first[0], count = anchor, -1, 0, -1, 1
    for voter in range(voters):
        node = 0
        for step in range(depths):
            token = after[voter, step]
            if token < 0:
                break
            child = first[node]
            while child >= 0 and tokens[child] != token:
                child = sibling[child]
            if child < 0:
                child = count
                tokens[child], parent[child], depth[child] = token, node, step + 1
                first[child], sibling[child], first[node] = -1, first[node], child
                count += 1
            match = min(LONGEST, matches[voter] + step)
            votes[child] += match * match
            total[node] += match * match
            longest[child] = max(longest[child], match)
            node = child
    claim, cell = np.ones(count), np.zeros(count, np.int64)
    path = np.zeros(count, np.float32)
    for node in range(1, count):
        share = votes[node] / total[parent[node]]
        cell[node] = _class(MATCHES, longest[node]) * (len(SHARES) + 1) + _class(SHARES, share)
        claim[node] = share * longest[node] / (longest[node] + 1)
        chance = min(max(claim[node] * factors[cell[node]], IMPOSSIBLE), CERTAIN)
        path[node] = path[parent[node]] + np.float32(np.log(chance))
    order = np.argsort(-path, kind="mergesort")[:most]  # stable, and parents precede children
    position = np.empty(count, np.int64)
    for slot in range(len(order)):
        position[order[slot]] = slot
    above = np.full(len(order), -1)
    for slot in range(1, len(order)):
        above[slot] = position[parent[order[slot]]]
    return tokens[order], above, depth[order], path[order], claim[order], cell[order]
