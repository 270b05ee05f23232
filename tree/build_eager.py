"""The paper's expansion in tensor operations: all children at each pop, without a loop over pops.

The heap of `build_eager_reference` pops nodes in best-first order, and so does the one of the optimal tree:
children that are offered at once or one after the other are popped in the same order. So the eager tree is
the optimal one with each node's whole family written down, in its order, until the budget ends. N nodes of it
are enough: a popped node is in the eager tree already, so that N pops make it at least as large.
"""

import torch
from torch import Tensor

from .build_levels import padded
from .score import ScoredRows
from .token_tree import NONE, TokenTree


def expand_all(expanded: TokenTree, rows: ScoredRows, budget: int) -> TokenTree:
    """All children of the nodes of an optimal tree, in its order, as far as `budget` slots go.

    rows: `[B, D, W]`. `expanded`: the N best nodes over these rows, root included.
    """
    usable = rows.edges.isfinite()
    if rows.bonus is not None:
        usable = usable & rows.bonus[:, :, None].isfinite()
    is_node = expanded.tokens != NONE
    families = torch.nn.functional.pad(usable.sum(2), (0, 1))  # none below the last row
    families = torch.where(is_node, families.gather(1, expanded.depth), 0)
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
