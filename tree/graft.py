"""Branches grafted onto a tree: one tree of the best nodes of both.

What is weighed is a node's chance to be accepted, so both trees' `logprob` must be logarithms of that (`tally`
makes them so), not of what two drafters believe on scales of their own. A node that both have is one node, with the
larger of the two chances given its parent; its descendants gain by it. The chance of a path never grows with its
length, so the n best nodes hold their parents, and no other n nodes of the two trees have a larger sum.

`graft_reference` is the same in plain Python.
"""

from collections.abc import Sequence

import numba
import numpy as np
import torch

from .token_tree import TokenTree


def graft(
    tree: TokenTree, branches: TokenTree, budget: int, budgets: Sequence[int] | None = None
) -> TokenTree:
    """The best nodes of two batches of trees with the same roots, at most `budget` each, or `budgets[b]`.

    All trees lie on the host. The slots are as many as the largest tree needs. Nodes come best first, so the n-node
    tree is the first n nodes of a larger one; of equals those of `tree` first, each in its own order.

    Raises ValueError if the roots differ or a budget has no room for the root.
    """
    sizes = np.full(tree.batch_size, budget) if budgets is None else np.asarray(budgets, np.int64)
    if len(sizes) != tree.batch_size or not ((sizes >= 1) & (sizes <= budget)).all():
        raise ValueError(
            f"budgets must be {tree.batch_size} numbers from 1 to {budget}, got {sizes.tolist()}"
        )
    ours, theirs = _arrays(tree), _arrays(branches)
    if not np.array_equal(ours[0][:, 0], theirs[0][:, 0]):
        raise ValueError("branches are grafted onto trees of the same roots")
    slots = min(budget, tree.budget + branches.budget - 1)
    arrays = _graft(*ours, *theirs, sizes, slots)
    grafted = TokenTree(*(torch.from_numpy(array) for array in arrays))
    return grafted.prefix(int(grafted.size.max()))


def _arrays(tree: TokenTree) -> tuple[np.ndarray, ...]:
    """tokens, parent, logprob, size."""
    return tuple(field.contiguous().numpy() for field in (tree.tokens, tree.parent, tree.logprob, tree.size))


@numba.njit(cache=True)
def _graft(
    tokens, parent, logprob, size, their_tokens, their_parent, their_logprob, their_size, sizes, slots
):
    batch, most = len(tokens), tokens.shape[1] + their_tokens.shape[1] - 1
    result = (
        np.full((batch, slots), -1),
        np.full((batch, slots), -1),
        np.zeros((batch, slots), np.int64),
        np.full((batch, slots), -np.inf, np.float32),
        np.zeros(batch, np.int64),
    )
    edge, path = np.empty(most, np.float32), np.empty(most, np.float32)
    token, above, depth = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64)
    first, sibling = np.empty(most, np.int64), np.empty(most, np.int64)  # children as linked lists
    place = np.empty(their_tokens.shape[1], np.int64)  # of their nodes among all
    for b in range(batch):
        count = 1
        token[0], above[0], depth[0], path[0], first[0] = tokens[b, 0], -1, 0, 0, -1
        for slot in range(1, size[b]):
            up = parent[b, slot]
            token[slot], above[slot], edge[slot] = tokens[b, slot], up, logprob[b, slot] - logprob[b, up]
            first[slot], sibling[slot], first[up] = -1, first[up], slot
            count += 1
        place[0] = 0
        for slot in range(1, their_size[b]):
            up = place[their_parent[b, slot]]
            step = their_logprob[b, slot] - their_logprob[b, their_parent[b, slot]]
            node = first[up]
            while node >= 0 and token[node] != their_tokens[b, slot]:
                node = sibling[node]
            if node < 0:
                node = count
                token[node], above[node], edge[node] = their_tokens[b, slot], up, step
                first[node], sibling[node], first[up] = -1, first[up], node
                count += 1
            elif step > edge[node]:
                edge[node] = step
            place[slot] = node
        for node in range(1, count):
            path[node] = path[above[node]] + edge[node]
            depth[node] = depth[above[node]] + 1
        order = np.argsort(-path[:count], kind="mergesort")  # stable, and parents precede children
        position = np.empty(count, np.int64)
        kept = min(count, sizes[b])
        for slot in range(kept):
            node = order[slot]
            position[node] = slot
            result[0][b, slot] = token[node]
            result[1][b, slot] = position[above[node]] if slot else -1
            result[2][b, slot] = depth[node]
            result[3][b, slot] = path[node]
        result[4][b] = kept
    return result
