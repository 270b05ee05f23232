"""Acceptance on sampled trees: recursive rejection and traversal, batched, without waiting for the device.

`accept_reference` has the two rules as they are told: tries, coins and rejections one after another. Nothing in
them depends on a coin but where the round ends. So all chances are computed first, for all nodes, in one pass
over the slots (a parent comes before its children, and these come in draw order). Then two throws settle a
request: the node at which the path ends, and the bonus token behind it.

The pass costs O(N K), whatever the vocabulary, and the target's rows are only summed, gathered from, and read
once at the end.
"""

import torch
from torch import Tensor

from .accept import Acceptance, path_through
from .dice import Dice
from .layout import ancestor_mask
from .sampled import SampledTree
from .token_tree import NONE, TokenTree


def accept_rejection(tree: TokenTree, probs: Tensor, max_depth: int, dice: Dice) -> Acceptance:
    """Accept by recursive rejection without replacement.

    probs: `[B, N, V]`, the target's law at each node, with temperature, top-k, top-p and so on already applied;
    rows need not sum to exactly 1. At most `max_depth` drafts are accepted. Raises ValueError unless the tree
    is a `SampledTree`.
    """
    law = _MissingLaw(_sampled(tree, "rejection"), probs, max_depth)
    ends = torch.zeros_like(
        law.allowance
    )  # probability that the walk is at a node, its tried children rejected
    ends[:, 0] = 1.0
    for slot in range(1, tree.budget):
        parent, chance = law.try_child(slot)
        arrived = ends[law.batch, parent]
        ends[:, slot] = arrived * chance
        ends[law.batch, parent] = torch.where(law.drafted[:, slot], arrived * (1 - chance), arrived)
    return _throw(law, ends, dice)


def accept_traversal(tree: TokenTree, probs: Tensor, max_depth: int, dice: Dice) -> Acceptance:
    """Accept by traversal verification; arguments and errors as for `accept_rejection`."""
    law = _MissingLaw(_sampled(tree, "traversal"), probs, max_depth)
    for slot in range(1, tree.budget):
        _, chance = law.try_child(slot)
        law.allow(slot, chance)
    law.allowance[:, 0] = 1.0  # already so, but for rounding
    # Where the first success in post-order is: everything before it has failed.
    order = post_order(tree)
    succeeds = law.allowance.gather(1, order)
    none_before = torch.cat([torch.ones_like(succeeds[:, :1]), (1 - succeeds).cumprod(1)[:, :-1]], 1)
    ends = torch.zeros_like(succeeds).scatter_(1, order, succeeds * none_before)
    return _throw(law, ends, dice)


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


class _MissingLaw:
    """What each node has yet to contribute, given that its children tried so far were rejected.

    That is `a p`: the node's allowance times the law of its next token (`accept_reference` has the argument).
    It is kept on the K candidates of the node's row. On all other tokens q is 0, where (a p - q)+ only ever
    scales, so one factor a node stands for the rest of the vocabulary.
    """

    def __init__(self, tree: SampledTree, probs: Tensor, max_depth: int) -> None:
        self.tree, self.probs, self.max_depth = tree, probs, max_depth
        self.batch = torch.arange(tree.batch_size, device=probs.device)
        self.drafted = (tree.parent >= 0) & (tree.depth <= max_depth)
        batch, row = self.batch[:, None], tree.depth.clamp(max=tree.draft.shape[1] - 1)
        self.candidates = tree.candidates[batch, row]  # [B, N, K]
        self.q = tree.draft[batch, row]  # [B, N, K], of the next draw, not normalised
        total = probs.sum(-1, dtype=torch.float64)
        self.factor = 1 / total  # [B, N], times the target's own probabilities: a p outside the candidates
        self.on = probs.gather(-1, self.candidates) * self.factor[..., None]  # [B, N, K], a p on them
        self.off = (1 - self.on.sum(-1)).clamp(min=0)  # [B, N], sum of a p outside them
        self.allowance = self.drafted.to(torch.float64)  # [B, N], a
        self.allowance[:, 0] = 1.0

    def try_child(self, slot: int) -> tuple[Tensor, Tensor]:
        """(parent `[B]`, chance `[B]`) of the node in `slot`: min(1, a p/q), 0 if there is no node. Its parent is
        left as it is if the child comes back rejected."""
        parent = self.tree.parent[:, slot].clamp(min=0)
        at, pick, drafted = (self.batch, parent), self.tree.pick[:, slot, None], self.drafted[:, slot]
        on, off, allowance, left_q = self.on[at], self.off[at], self.allowance[at], self.q[at]

        q = left_q / left_q.sum(-1, keepdim=True)
        missing = (on - q).clamp(min=0)
        left = missing.sum(-1) + off
        rejected = left + (1 - allowance)  # probability that a child drawn from q comes back rejected
        can_fail = rejected > 0
        chance = (on.gather(1, pick) / q.gather(1, pick))[:, 0].clamp(max=1)
        chance = torch.where(drafted, chance.where(can_fail, 1.0), 0.0)

        scale = torch.where(can_fail, 1 / rejected, 0.0)
        self.on[at] = torch.where(drafted[:, None], missing * scale[:, None], on)
        self.off[at] = torch.where(drafted, off * scale, off)
        self.factor[at] *= torch.where(drafted, scale, 1.0)
        self.allowance[at] = torch.where(drafted, left * scale, allowance)
        self.q[at] = torch.where(drafted[:, None], left_q.scatter(1, pick, 0.0), left_q)
        return parent, chance

    def allow(self, slot: int, chance: Tensor) -> None:
        """Limit the node in `slot`, of allowance 1 so far, to `chance [B]`."""
        self.allowance[:, slot] = chance
        self.on[:, slot] *= chance[:, None]
        self.off[:, slot] *= chance
        self.factor[:, slot] *= chance

    def bonus_weights(self, node: Tensor) -> Tensor:
        """`[B, V]` fp64, the law (not normalised) of the token that follows `node [B]`."""
        at = (self.batch, node)
        target = self.probs[at].to(torch.float64)
        weights = target * self.factor[at][:, None]
        weights = weights.scatter(1, self.candidates[at], self.on[at])
        # Only rounding leads to where nothing is missing.
        return weights.where(weights.sum(-1, keepdim=True) > 0, target)


def _throw(law: _MissingLaw, ends: Tensor, dice: Dice) -> Acceptance:
    """Settle the round, given the law `ends [B, N]` of the path's last node."""
    tree = law.tree
    end = dice.draw(ends)
    bonus = dice.draw(law.bonus_weights(end))
    on_path = ancestor_mask(tree)[law.batch, end]
    path, lengths = path_through(tree, on_path, law.max_depth), on_path.sum(1)
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
