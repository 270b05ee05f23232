"""Acceptance on sampled trees: recursive rejection and traversal, batched, without waiting for the device.

`accept_reference` has the two rules as they are told: tries, coins and rejections one after another. Nothing in
them depends on a coin but where the round ends. So all chances are computed first (`missing_law`), and then two
throws settle a request: the node at which the path ends, and the bonus token behind it.
"""

import torch
from torch import Tensor

from .accept import Acceptance, path_through
from .dice import Dice
from .layout import ancestor_mask
from .missing_law import MissingLaw, TargetLaw, at_start, total, try_children
from .sampled import SampledTree
from .token_tree import NONE, TokenTree

ACCEPTANCES = ("match", "rejection", "traversal")
"""Names of the rules for requests that sample: `accept.accept_match`, and the two of this module."""


def accept_rejection(tree: TokenTree, target: TargetLaw, max_depth: int, dice: Dice) -> Acceptance:
    """Accept by recursive rejection without replacement.

    target: the law at the nodes asked for, with temperature, top-k, top-p and so on already applied
    (`missing_law.TargetLaw`; `given` makes one of a tensor). At most `max_depth` drafts are accepted. Raises
    ValueError unless the tree is a `SampledTree`.
    """
    tree = _sampled(tree, "rejection")
    law = at_start(tree, target, max_depth)
    try_children(law, tree, limit=False)
    return _throw(tree, law, target, law.reach, max_depth, dice)


def accept_traversal(tree: TokenTree, target: TargetLaw, max_depth: int, dice: Dice) -> Acceptance:
    """Accept by traversal verification; arguments and errors as for `accept_rejection`."""
    tree = _sampled(tree, "traversal")
    law = at_start(tree, target, max_depth)
    try_children(law, tree, limit=True)
    law.allowance[:, 0] = 1.0  # already so, but for rounding
    # Where the first success in post-order is: everything before it has failed.
    order = post_order(tree)
    succeeds = law.allowance.gather(1, order).where(law.drafted.gather(1, order) | (order == 0), 0.0)
    none_before = torch.cat([torch.ones_like(succeeds[:, :1]), (1 - succeeds).cumprod(1)[:, :-1]], 1)
    ends = torch.zeros_like(succeeds).scatter_(1, order, succeeds * none_before)
    return _throw(tree, law, target, ends, max_depth, dice)


def given(probs: Tensor) -> TargetLaw:
    """A law that is there already: `probs [B, N, V]` at every node."""

    def rows(nodes: Tensor | None) -> Tensor:
        if nodes is None:
            return probs
        return probs[torch.arange(len(nodes), device=nodes.device)[:, None], nodes]

    return rows


def post_order(tree: TokenTree) -> Tensor:
    """`[B, N]` int64: slots in post-order, siblings by slot, padding at the end."""
    mask = ancestor_mask(tree).float()  # small whole numbers are exact in fp32, and have a matrix product
    size = mask.sum(1)
    siblings = (tree.parent[:, :, None] == tree.parent[:, None, :]) & (tree.parent >= 0)[:, None, :]
    before = (siblings.tril(-1) * size[:, None, :]).sum(-1)  # nodes in the subtrees of earlier siblings
    place = (mask @ before[:, :, None])[:, :, 0] + size - 1
    slots = torch.arange(tree.budget, device=place.device).expand_as(tree.parent)
    place = torch.where(tree.tokens >= 0, place.long(), slots)
    return torch.empty_like(place).scatter_(1, place, slots)


def bonus_weights(law: MissingLaw, target: Tensor, node: Tensor) -> Tensor:
    """`[B, V]` fp64, the law, not normalised, of the token that follows `node [B]`: what is missing there.

    target: `[B, V]` fp64 of sum 1, the target's own law there.
    """
    at = (torch.arange(len(node), device=node.device), node)
    weights = target * law.factor[at][:, None]
    on = torch.where(law.known[at][:, None], law.on[at], weights.gather(1, law.candidates[at]))
    weights.scatter_(1, law.candidates[at], on)
    # Nothing is missing where rejection is impossible; only rounding can lead there.
    return weights.where(weights.sum(-1, keepdim=True) > 0, target)


def _throw(
    tree: SampledTree, law: MissingLaw, target: TargetLaw, ends: Tensor, max_depth: int, dice: Dice
) -> Acceptance:
    """Settle the round, given the law `ends [B, N]` of the path's last node."""
    end = dice.draw(ends)
    row = target(end[:, None])[:, 0]
    bonus = dice.draw(bonus_weights(law, row.to(torch.float64) / total(row)[:, None], end))
    on_path = ancestor_mask(tree)[torch.arange(len(end), device=end.device), end]
    path, lengths = path_through(tree, on_path, max_depth), on_path.sum(1)
    after = torch.nn.functional.pad(path[:, 1:], (0, 1), value=NONE)
    tokens = torch.where(after >= 0, tree.tokens.gather(1, after.clamp(min=0)), NONE)
    return Acceptance(path, lengths, tokens.scatter(1, lengths[:, None] - 1, bonus[:, None]))


def _sampled(tree: TokenTree, rule: str) -> SampledTree:
    if not isinstance(tree, SampledTree):
        raise ValueError(
            f"{rule} is exact only for trees whose tokens were drawn; make them with draw_tree, "
            "or accept top-k trees by match"
        )
    return tree
