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
from .missing_law import MissingLaw, at_start, try_children
from .sampled import SampledTree
from .token_tree import NONE, TokenTree

ACCEPTANCES = ("match", "rejection", "traversal")
"""Names of the rules for requests that sample: `accept.accept_match`, and the two of this module."""


def accept_rejection(tree: TokenTree, probs: Tensor, max_depth: int, dice: Dice) -> Acceptance:
    """Accept by recursive rejection without replacement.

    probs: `[B, N, V]`, the target's law at each node, with temperature, top-k, top-p and so on already applied;
    rows need not sum to exactly 1. At most `max_depth` drafts are accepted. Raises ValueError unless the tree
    is a `SampledTree`.
    """
    tree = _sampled(tree, "rejection")
    law = at_start(tree, probs, max_depth)
    try_children(law, tree, limit=False)
    return _throw(tree, law, probs, law.reach, max_depth, dice)


def accept_traversal(tree: TokenTree, probs: Tensor, max_depth: int, dice: Dice) -> Acceptance:
    """Accept by traversal verification; arguments and errors as for `accept_rejection`."""
    tree = _sampled(tree, "traversal")
    law = at_start(tree, probs, max_depth)
    try_children(law, tree, limit=True)
    law.allowance[:, 0] = 1.0  # already so, but for rounding
    # Where the first success in post-order is: everything before it has failed.
    order = post_order(tree)
    succeeds = law.allowance.gather(1, order)
    none_before = torch.cat([torch.ones_like(succeeds[:, :1]), (1 - succeeds).cumprod(1)[:, :-1]], 1)
    ends = torch.zeros_like(succeeds).scatter_(1, order, succeeds * none_before)
    return _throw(tree, law, probs, ends, max_depth, dice)


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


def bonus_weights(law: MissingLaw, probs: Tensor, node: Tensor) -> Tensor:
    """`[B, V]` fp64, the law, not normalised, of the token that follows `node [B]`: what is missing there."""
    at = (torch.arange(len(node), device=node.device), node)
    target = probs[at].to(torch.float64)
    weights = (target * law.factor[at][:, None]).scatter_(1, law.candidates[at], law.on[at])
    # Nothing is missing where rejection is impossible; only rounding can lead there.
    return weights.where(weights.sum(-1, keepdim=True) > 0, target)


def _throw(
    tree: SampledTree, law: MissingLaw, probs: Tensor, ends: Tensor, max_depth: int, dice: Dice
) -> Acceptance:
    """Settle the round, given the law `ends [B, N]` of the path's last node."""
    end = dice.draw(ends)
    bonus = dice.draw(bonus_weights(law, probs, end))
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
