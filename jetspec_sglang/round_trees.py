"""The trees of one round, each as its request wants it: its size, its shape, its tokens drawn or not."""

from dataclasses import replace
from typing import Any

import torch

from .drafters.contract import PathDrafter
from .tree import (
    DraftProposal,
    RandomDice,
    TokenTree,
    build_tree,
    build_tree_by_path,
    drafting_law,
    draw_tree,
    drawable,
    host_values,
    scoring_policy,
)
from .tree_settings import TreeSettings

CANDIDATES = 64  # of a row that tokens are drawn from; the probability behind them is not drafted


def candidates(settings: list[TreeSettings]) -> int | None:
    """How many candidates a row of the round's proposal needs; None for the drafter's own number."""
    if not any(drawn(own) for own in settings):
        return None
    return max(CANDIDATES, *(own.width for own in settings))


def drawn(settings: TreeSettings) -> bool:
    """Whether the tokens of a request's trees are drawn from the rows, not the most probable of them."""
    return settings.acceptance != "match"


def build_trees(
    proposal: DraftProposal, anchors: torch.Tensor, settings: list[TreeSettings], budget: int, info: Any
) -> TokenTree:
    """Trees in `budget` slots for `anchors` [B] int64; request b uses at most `settings[b].budget` of them.

    Requests that want the same kind of tree, which is nearly always all of them, are built in one call. info:
    SGLang's SamplingBatchInfo, by which tokens are drawn. A `SampledTree` if any request has drawn tokens.
    """
    if not any(drawn(own) for own in settings):
        return _build_by_kind(proposal, anchors, settings, budget)
    law = drafting_law(
        proposal,
        info.temperatures[:, 0],
        top_ks=info.top_ks if info.need_top_k_sampling else None,
        top_ps=info.top_ps if info.need_top_p_sampling else None,
        min_ps=info.min_ps if info.need_min_p_sampling else None,
    )
    mask = host_values([drawn(own) for own in settings], anchors.device)
    logprobs = torch.where(mask[:, None, None], drawable(proposal, law).logprobs, proposal.logprobs)
    rows = replace(proposal, logprobs=logprobs)
    shape = _build_by_kind(rows, anchors, settings, budget)
    tree = draw_tree(shape, law, RandomDice())
    return replace(tree, tokens=torch.where(mask[:, None], tree.tokens, shape.tokens))


def grow_trees(
    drafter: PathDrafter,
    anchors: torch.Tensor,
    slots: torch.Tensor,
    batch: Any,
    settings: list[TreeSettings],
    budget: int,
    depth: int,
) -> TokenTree:
    """What `build_trees` gives, by a drafter that must be asked level by level, for trees up to `depth` deep.

    slots: `[B, L]` int64, scratch of the drafter. It drafts for the whole batch, so where requests want different
    kinds of trees, the batch is drafted once a kind and each request's own tree is kept.
    """
    parts = []
    kinds = rows_by_kind(settings)
    for rows in kinds:
        own = settings[rows[0]]
        sizes = [min(each.budget, budget) for each in settings]
        shape = {"width": own.width, "depth": min(own.depth, depth)}
        entropy = scoring_policy(own.scoring).needs_entropy
        tree = build_tree_by_path(
            drafter.expander(slots, batch, **shape, budget=budget, entropy=entropy),
            anchors,
            budget,
            **shape,
            frontier=drafter.frontier,
            scoring=own.scoring,
            budgets=None if min(sizes) == budget else sizes,
        )
        parts.append(tree if len(kinds) == 1 else tree.rows(host_values(rows, anchors.device)))
    return in_request_order(parts, kinds)


def _build_by_kind(
    proposal: DraftProposal, anchors: torch.Tensor, settings: list[TreeSettings], budget: int
) -> TokenTree:
    kinds = rows_by_kind(settings)
    if len(kinds) == 1:
        return _build(proposal, anchors, settings, budget)
    parts = []
    for rows in kinds:
        index = host_values(rows, anchors.device)
        parts.append(_build(proposal.rows(index), anchors[index], [settings[row] for row in rows], budget))
    return in_request_order(parts, kinds)


def rows_by_kind(settings: list[TreeSettings]) -> list[list[int]]:
    """Indices of the requests whose trees can be built in one call, for each kind of tree."""
    kinds: dict[tuple, list[int]] = {}
    for row, own in enumerate(settings):
        kinds.setdefault((own.depth, own.width, own.expansion, own.scoring), []).append(row)
    return list(kinds.values())


def in_request_order(parts: list[TokenTree], kinds: list[list[int]]) -> TokenTree:
    """One batch of trees from those of each kind."""
    if len(parts) == 1:
        return parts[0]
    order = host_values([row for rows in kinds for row in rows], parts[0].tokens.device)
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
