"""The trees of one round, each as its request wants it."""

import torch

from .tree import DraftProposal, TokenTree, build_tree
from .tree_settings import TreeSettings


def build_trees(
    proposal: DraftProposal, anchors: torch.Tensor, settings: list[TreeSettings], budget: int
) -> TokenTree:
    """Trees in `budget` slots for `anchors` [B] int64; request b uses at most `settings[b].budget` of them.

    Requests that want the same kind of tree, which is nearly always all of them, are built in one call.
    """
    kinds: dict[tuple, list[int]] = {}
    for row, own in enumerate(settings):
        kinds.setdefault((own.depth, own.width, own.expansion, own.scoring), []).append(row)
    if len(kinds) == 1:
        return _build(proposal, anchors, settings, budget)
    parts = []
    for rows in kinds.values():
        index = torch.tensor(rows, device=anchors.device)
        parts.append(_build(proposal.rows(index), anchors[index], [settings[row] for row in rows], budget))
    order = torch.tensor([row for rows in kinds.values() for row in rows], device=anchors.device)
    return TokenTree.cat(parts).rows(order.argsort())


def _build(
    proposal: DraftProposal, anchors: torch.Tensor, settings: list[TreeSettings], budget: int
) -> TokenTree:
    kind = settings[0]
    sizes = [min(own.budget, budget) for own in settings]
    return build_tree(
        proposal,
        anchors,
        budget,
        # A round may be drafted less deep than a request would like.
        depth=min(kind.depth, proposal.depth),
        width=min(kind.width, proposal.width),
        scoring=kind.scoring,
        expansion=kind.expansion,
        budgets=None if min(sizes) == budget else sizes,
    )
