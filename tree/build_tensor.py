"""Tensor-operation builders for any device, put together: both expansions, rows by depth and rows by path."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .build_eager import expand_all
from .build_levels import NEVER, Growth, Levels, RowSource
from .build_merge import Merge
from .host_values import host_values
from .score import ScoredRows
from .token_tree import TokenTree


def build_tensor(
    rows: ScoredRows, anchors: Tensor, budget: int, *, sizes: Sequence[int] | Tensor | None, eager: bool
) -> TokenTree:
    """Grow every tree of the batch; the same trees as `build_heap`.

    rows: `[B, D, W]`; anchors `[B]` int64. Request b gets at most `sizes[b]` nodes in N = budget slots.
    """
    rows = usable(rows)
    tree = _grow_shared(rows, anchors, budget)
    if eager:
        tree = expand_all(tree, rows, budget)
    return tree if sizes is None else tree.shortened(host_values(sizes, anchors.device))


def build_by_rows(row_of: RowSource, anchors: Tensor, budget: int, *, depth: int, frontier: int) -> TokenTree:
    """The optimal prefix tree over rows that are asked for level by level, usable ones.

    At most `frontier` nodes of a level are expanded. Either all rows have a bonus or none has.
    """
    levels, frontier = min(depth, budget - 1), min(frontier, budget - 1)  # N nodes are at most N - 1 deep
    if levels == 0:
        return TokenTree.roots(anchors)
    root = anchors[:, None]
    rows = row_of(0, root, torch.zeros_like(root))
    growth: Growth = Levels(anchors, budget) if rows.bonus is None else Merge(anchors, budget)
    growth.extend(rows, 1)
    for level in range(1, levels):
        width = growth.worth(frontier)
        if width == 0:
            break
        growth.extend(row_of(level, growth.tokens[:, :width], growth.parents[:, :width]), width)
    return growth.tree()


def usable(rows: ScoredRows) -> ScoredRows:
    """Rows in which nothing but -inf follows their first entry that isn't finite. NaN would sort first."""
    edges = torch.where(rows.edges.isfinite().int().cumprod(2) > 0, rows.edges, NEVER)
    return rows._replace(edges=edges, logprobs=edges if rows.logprobs is rows.edges else rows.logprobs)


def _grow_shared(rows: ScoredRows, anchors: Tensor, budget: int) -> TokenTree:
    def row_of(level: int, tokens: Tensor, parents: Tensor) -> ScoredRows:
        here = slice(level, level + 1)
        edges = rows.edges[:, here]
        logprobs = edges if rows.logprobs is rows.edges else rows.logprobs[:, here]
        return ScoredRows(
            rows.token_ids[:, here], logprobs, edges, None if rows.bonus is None else rows.bonus[:, here]
        )

    return build_by_rows(row_of, anchors, budget, depth=rows.edges.shape[1], frontier=budget)
