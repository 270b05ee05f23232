"""The paper's expansion in tensor operations: all children at each pop, without a loop over pops.

The heap of `build_eager_reference` pops nodes in best-first order, and so does the one of the optimal tree:
children that are offered at once or one after the other are popped in the same order. The nodes that the
eager builder expands, in its order, are therefore an optimal tree themselves, over the nodes that can have
children at all. Build that one, then write down the children of each of its nodes.
"""

import torch
from torch import Tensor

from .build_levels import padded
from .score import ScoredRows
from .token_tree import NONE, TokenTree


def expandable(rows: ScoredRows) -> ScoredRows:
    """Rows `[B, D - 1, W]` for the nodes that have children: none at the last depth, none above an empty row."""
    has_next = rows.edges[:, 1:, :1].isfinite()
    bonus = rows.bonus
    if bonus is not None:
        has_next = has_next & bonus[:, 1:, None].isfinite()
        bonus = bonus[:, :-1]
    edges = torch.where(has_next, rows.edges[:, :-1], float("-inf"))
    return ScoredRows(rows.token_ids[:, :-1], rows.logprobs[:, :-1], edges, bonus)


def expand_all(expanded: TokenTree, rows: ScoredRows, budget: int) -> TokenTree:
    """All children of the nodes of `expanded`, in its order, as far as `budget` slots go.

    rows: `[B, D, W]`. `expanded`: the nodes to expand, root included, N - 1 of them or all there are.
    """
    usable = rows.edges.isfinite()
    if rows.bonus is not None:
        usable = usable & rows.bonus[:, :, None].isfinite()
    is_node = expanded.tokens != NONE
    families = torch.where(is_node, usable.sum(2).gather(1, expanded.depth), 0)
    ends = 1 + families.cumsum(1)
    starts = ends - families

    # Where the expanded nodes themselves are: in their parent's family, at their own rank.
    row_above = (expanded.depth - 1).clamp(min=0)
    width = rows.token_ids.shape[2]
    candidates = rows.token_ids.gather(1, row_above[:, :, None].expand(-1, -1, width))
    rank = (candidates == expanded.tokens[:, :, None]).int().argmax(2)
    slot = starts.gather(1, expanded.parent.clamp(min=0)) + rank
    slot[:, 0] = 0

    slots = torch.arange(budget, device=ends.device).expand(len(ends), -1).contiguous()
    family = (torch.searchsorted(starts, slots, right=True) - 1).clamp(min=0)
    rank = slots - starts.gather(1, family)
    drafted = (rank >= 0) & (rank < families.gather(1, family))
    row = expanded.depth.gather(1, family)
    where = (row * width + rank).clamp(0, rows.token_ids.shape[1] * width - 1)
    tokens = rows.token_ids.flatten(1).gather(1, where)
    logprob = expanded.logprob.gather(1, family) + rows.logprobs.flatten(1).gather(1, where)
    return _with_root(expanded, tokens, slot.gather(1, family), row + 1, logprob, drafted, budget)


def _with_root(
    expanded: TokenTree,
    tokens: Tensor,
    parent: Tensor,
    depth: Tensor,
    logprob: Tensor,
    drafted: Tensor,
    budget: int,
) -> TokenTree:
    """Slot 0 is nobody's child; it comes from the expanded root."""
    for column, root in (
        (tokens, expanded.tokens),
        (parent, expanded.parent),
        (depth, expanded.depth),
        (logprob, expanded.logprob),
    ):
        column[:, 0] = root[:, 0]
    drafted[:, 0] = True
    return padded(tokens, parent, depth, logprob, drafted=drafted, budget=budget)
