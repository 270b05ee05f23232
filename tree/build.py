"""From a proposal to token trees: checks, then the faster builder of the device."""

import torch
from torch import Tensor

from .build_heap import build_heap
from .build_levels import build_levels
from .proposal import DraftProposal
from .score import DEFAULT_SCORING, scoring_policy
from .token_tree import TokenTree


def build_tree(
    proposal: DraftProposal,
    anchors: Tensor,
    budget: int,
    *,
    width: int | None = None,
    depth: int | None = None,
    scoring: str = DEFAULT_SCORING,
) -> TokenTree:
    """The best tree of `budget` nodes, root included, for every request of the batch.

    anchors: `[B]` int64, the last committed tokens. `width` and `depth` use fewer candidates and rows than
    the proposal has. The result always has N = budget slots; what the grid cannot fill is padding. Budget 1
    is the root alone: plain decoding.

    Both builders give the same tree, bit for bit and ties included (`build_reference` has the ranking rules).
    On an accelerator nothing waits for the device. Raises ValueError on a wrong size, shape or dtype.
    """
    if budget < 1:
        raise ValueError(f"budget counts the root, so it is at least 1; got {budget}")
    if anchors.shape != (proposal.batch_size,) or anchors.dtype != torch.int64:
        raise ValueError(
            f"anchors must be int64 [{proposal.batch_size}], got {anchors.dtype} {tuple(anchors.shape)}"
        )
    width = _within("width", width, proposal.width)
    depth = _within("depth", depth, proposal.depth)
    token_ids = proposal.token_ids[:, :depth, :width]
    edge_scores = scoring_policy(scoring)(proposal)[:, :depth, :width]
    build = build_heap if token_ids.device.type == "cpu" else build_levels
    return build(token_ids, edge_scores, anchors, budget)


def _within(name: str, value: int | None, limit: int) -> int:
    if value is None:
        return limit
    if not 1 <= value <= limit:
        raise ValueError(f"{name} {value} is outside 1..{limit}, what the proposal has")
    return value
