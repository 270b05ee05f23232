"""How the target sees a tree: positions, masks, and the links that sampling kernels walk.

Each function has a compiled path for the CPU, where a round has few microseconds to spare, and tensor
operations for accelerators, which never wait for the device. `layout_reference` says the same in plain
Python.
"""

import numba
import numpy as np
import torch
from torch import Tensor

from .token_tree import NONE, TokenTree


def positions(tree: TokenTree, prefix_lens: Tensor) -> Tensor:
    """Position of every node in its sequence, `[B, N]` int64.

    prefix_lens: `[B]` int, committed tokens whose KV is in the cache. The anchor is not among them: the root
    sits at position `prefix_len`. Padding slots share the root's position.
    """
    return tree.depth + prefix_lens[:, None]


def ancestor_mask(tree: TokenTree) -> Tensor:
    """`[B, N, N]` bool: node i sees node j iff j is i or an ancestor of i.

    A padding slot sees itself only. It must see something, or its softmax would be 0/0 and NaN would enter
    its KV, where even a masked read is NaN (0 x NaN).
    """
    if tree.parent.device.type == "cpu":
        return torch.from_numpy(_mask_rows(tree.parent.contiguous().numpy()))
    return ancestor_mask_tensor(tree.parent)


def ancestor_mask_tensor(parent: Tensor) -> Tensor:
    """`ancestor_mask` in tensor operations, from `parent [B, N]`; any device.

    Squaring the relation "is me or my parent" doubles its reach: log2(N) small products instead of one step
    a level.
    """
    nodes = parent.shape[1]
    slots = torch.arange(nodes, device=parent.device)
    sees = (parent[:, :, None] == slots) | (slots[:, None] == slots)
    for _ in range(max(nodes - 2, 0).bit_length()):
        reach = sees.float()
        sees = torch.bmm(reach, reach) > 0
    return sees


def full_mask(mask: Tensor, prefix_lens: Tensor, prefix_lens_sum: int | None = None) -> Tensor:
    """The flat mask that FlashInfer and SGLang's `FULL_MASK` take: bool, `sum_b N * (prefix_b + N)` entries.

    Per request a row-major `[N, prefix_len + N]` block: the prefix is visible to every node, then come the
    request's rows of `mask [B, N, N]`. Requests are concatenated. A mask may have more columns than rows, for
    keys in front of the nodes that are not seen by all; the prefix ends before them.

    prefix_lens: `[B]` int. `prefix_lens_sum` is their sum where the host knows it (a scheduler does); without
    it the output size is read from the device.
    """
    batch, nodes, keys = mask.shape
    if prefix_lens_sum is None:
        prefix_lens_sum = int(prefix_lens.sum())
    flat = torch.ones(nodes * (prefix_lens_sum + batch * keys), dtype=torch.bool, device=mask.device)
    row_lens = prefix_lens.to(torch.int64) + keys
    ends = nodes * row_lens.cumsum(0)
    starts = ends - nodes * row_lens
    rows = torch.arange(nodes, device=mask.device)
    row_starts = starts[:, None] + rows * row_lens[:, None] + prefix_lens[:, None]
    flat[row_starts[:, :, None] + torch.arange(keys, device=mask.device)] = mask
    return flat


def retrieve_links(tree: TokenTree) -> tuple[Tensor, Tensor]:
    """(first child, next sibling) of every node, each `[B, N]` int64 slot numbers, -1 where there is none.

    SGLang's verify kernels call them `retrieve_next_token` and `retrieve_next_sibling`. Siblings are linked
    in slot order, best first. Padding slots link to nothing and nothing links to them.
    """
    if tree.parent.device.type == "cpu":
        first_child, next_sibling = _links(tree.parent.contiguous().numpy())
        return torch.from_numpy(first_child), torch.from_numpy(next_sibling)
    return retrieve_links_tensor(tree.parent)


def retrieve_links_tensor(parent: Tensor) -> tuple[Tensor, Tensor]:
    """`retrieve_links` in tensor operations, from `parent [B, N]`; any device."""
    nodes = parent.shape[1]
    slots = torch.arange(nodes, device=parent.device)

    def first(candidates: Tensor) -> Tensor:
        slot = torch.where(candidates, slots, nodes).amin(-1)
        return torch.where(slot < nodes, slot, NONE)

    is_child = parent[:, None, :] == slots[:, None]
    # The root and padding share parent -1 without being siblings.
    is_sibling = (parent[:, None, :] == parent[:, :, None]) & (parent >= 0)[:, :, None]
    return first(is_child), first(is_sibling & (slots > slots[:, None]))


@numba.njit(cache=True)
def _mask_rows(parent):
    batch, nodes = parent.shape
    mask = np.zeros((batch, nodes, nodes), np.bool_)
    for b in range(batch):
        for node in range(nodes):  # parents come first, so the parent's row is complete
            if parent[b, node] >= 0:
                mask[b, node] = mask[b, parent[b, node]]
            mask[b, node, node] = True
    return mask


@numba.njit(cache=True)
def _links(parent):
    batch, nodes = parent.shape
    first_child = np.full((batch, nodes), -1, np.int64)
    next_sibling = np.full((batch, nodes), -1, np.int64)
    for b in range(batch):
        for node in range(nodes - 1, 0, -1):  # backwards: each child is put in front of its later siblings
            above = parent[b, node]
            if above >= 0:
                next_sibling[b, node] = first_child[b, above]
                first_child[b, above] = node
    return first_child, next_sibling
