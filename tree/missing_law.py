"""What each node of a sampled tree has yet to contribute to the law of the text, as its children come back rejected.

That is `a p`: the node's allowance times the law of its next token (`accept_reference` has the argument). It is
kept on the K candidates of the node's row. On all other tokens q is 0, where (a p - q)+ only ever scales, so one
factor a node stands for the rest of the vocabulary, and the pass over a tree costs O(N K).

No step depends on a coin, so the pass tries every child of every node once: what it leaves behind is each node's
state after all of its children were rejected, and the chance of each child before. A parent comes before its
children and siblings come in draw order, hence one loop over the slots.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numba
import torch
from torch import Tensor

from .sampled import SampledTree

TargetLaw = Callable[[Tensor | None], Tensor]
"""The target's law `[B, K, V]` at the given nodes `[B, K]`; at all N nodes, in order, for None. Rows need not sum to
exactly 1."""


@dataclass(eq=False)
class MissingLaw:
    """All fp64 but for indices; `try_children` changes it in place.

    drafted:    `[B, N]` bool, slots that hold a child that may be accepted.
    known:      `[B, N]` bool, nodes whose `on` and `off` are filled in: all that have children.
    candidates: `[B, N, K]` int64, of each node's row, which its children are drawn from.
    q:          `[B, N, K]`, law of the next draw on them, not normalised.
    on:         `[B, N, K]`, a p on them.
    off:        `[B, N]`, a p summed over all other tokens.
    factor:     `[B, N]`, what the target's own probabilities, of sum 1, are multiplied with there to give a p.
    allowance:  `[B, N]`, a.
    reach:      `[B, N]`, probability that a walk from the root, descending at the first success, ends here.
    """

    drafted: Tensor
    known: Tensor
    candidates: Tensor
    q: Tensor
    on: Tensor
    off: Tensor
    factor: Tensor
    allowance: Tensor
    reach: Tensor


def at_start(tree: SampledTree, target: TargetLaw, max_depth: int) -> MissingLaw:
    """Before any child was tried. Of the target only the rows of nodes with children are asked for, on the CPU."""
    batch = torch.arange(tree.batch_size, device=tree.parent.device)[:, None]
    row = tree.depth.clamp(max=tree.draft.shape[1] - 1)  # the deepest nodes have no children: any row will do
    drafted = (tree.parent >= 0) & (tree.depth <= max_depth)
    candidates = tree.candidates[batch, row]
    inner, known = _inner_nodes(tree, drafted)
    at = slice(None) if inner is None else (batch, inner)
    law = MissingLaw(
        drafted=drafted,
        known=known,
        candidates=candidates,
        q=tree.draft[batch, row],
        on=torch.zeros(candidates.shape, dtype=torch.float64, device=drafted.device),
        off=torch.zeros(drafted.shape, dtype=torch.float64, device=drafted.device),
        factor=torch.ones(drafted.shape, dtype=torch.float64, device=drafted.device),
        allowance=torch.ones(drafted.shape, dtype=torch.float64, device=drafted.device),
        reach=torch.zeros(drafted.shape, dtype=torch.float64, device=drafted.device),
    )
    probs = target(inner)
    law.on[at] = probs.gather(-1, candidates[at]).to(torch.float64) / total(probs)[..., None]
    law.off[at] = (1 - law.on[at].sum(-1)).clamp(min=0)
    law.reach[:, 0] = 1.0
    return law


def total(probs: Tensor) -> Tensor:
    """Sum of each row in fp64. Summed as it is: fp32 adds up a row of softmax to about its own precision."""
    return probs.sum(-1).to(torch.float64)


def _inner_nodes(tree: SampledTree, drafted: Tensor) -> tuple[Tensor | None, Tensor]:
    """(nodes with children `[B, K]`, some of them twice, or None for all; `[B, N]` bool, which these are)."""
    everything = torch.ones_like(drafted)
    if drafted.device.type != "cpu":  # how many there are is for the device to know
        return None, everything
    children = torch.zeros(drafted.shape, dtype=torch.int64)
    known = children.scatter_add_(1, tree.parent.clamp(min=0), drafted.long()) > 0
    known[:, 0] = True  # it also fills up the rows
    most = int(known.sum(1).max())
    slots = torch.where(known, torch.arange(tree.budget), tree.budget).sort(1).values[:, :most]
    return slots.where(slots < tree.budget, 0), known


def try_children(law: MissingLaw, tree: SampledTree, limit: bool) -> None:
    """Try every child once, in slot order, as if all came back rejected.

    A child's chance is min(1, a p/q). With `limit` it becomes the child's own allowance (traversal); without,
    a walk that arrives at the child starts anew there, with allowance 1 (rejection).
    """
    if law.on.device.type != "cpu":
        return try_children_tensor(law, tree, limit)
    state = (law.drafted, law.q, law.on, law.off, law.factor, law.allowance, law.reach)
    links = (tree.parent.contiguous(), tree.pick.contiguous())
    _try_children(*(value.numpy() for value in (*links, *state)), limit)


def try_children_tensor(law: MissingLaw, tree: SampledTree, limit: bool) -> None:
    """`try_children` in tensor operations, without waiting for the device: slot by slot, all requests at once."""
    batch = torch.arange(tree.batch_size, device=law.on.device)
    for slot in range(1, tree.budget):
        drafted, pick = law.drafted[:, slot], tree.pick[:, slot, None]
        at = (batch, tree.parent[:, slot].clamp(min=0))
        on, off, allowance, left_q = law.on[at], law.off[at], law.allowance[at], law.q[at]

        q = left_q / left_q.sum(-1, keepdim=True)
        missing = (on - q).clamp(min=0)
        left = missing.sum(-1) + off
        rejected = left + (1 - allowance)  # probability that a child drawn from q comes back rejected
        can_fail = rejected > 0
        chance = (on.gather(1, pick) / q.gather(1, pick))[:, 0].clamp(max=1)
        chance = torch.where(drafted, chance.where(can_fail, 1.0), 0.0)

        scale = torch.where(can_fail, 1 / rejected, 0.0)
        law.on[at] = torch.where(drafted[:, None], missing * scale[:, None], on)
        law.off[at] = torch.where(drafted, off * scale, off)
        law.factor[at] *= torch.where(drafted, scale, 1.0)
        law.allowance[at] = torch.where(drafted, left * scale, allowance)
        law.q[at] = torch.where(drafted[:, None], left_q.scatter(1, pick, 0.0), left_q)
        arrived = law.reach[at]
        law.reach[at] = arrived * (1 - chance)
        law.reach[:, slot] = arrived * chance
        if limit:
            law.allowance[:, slot] = chance
            law.on[:, slot] *= chance[:, None]
            law.off[:, slot] *= chance
            law.factor[:, slot] *= chance


@numba.njit(cache=True)
def _try_children(parent, pick, drafted, q, on, off, factor, allowance, reach, limit):
    batch, nodes, kept = on.shape
    for b in range(batch):
        for slot in range(1, nodes):
            chance = 0.0
            if drafted[b, slot]:
                at, mine = parent[b, slot], pick[b, slot]
                total = 0.0
                for k in range(kept):
                    total += q[b, at, k]
                before = on[b, at, mine]
                left = off[b, at]
                for k in range(kept):
                    on[b, at, k] = max(on[b, at, k] - q[b, at, k] / total, 0.0)
                    left += on[b, at, k]
                rejected = left + (1 - allowance[b, at])
                chance = min(before / (q[b, at, mine] / total), 1.0) if rejected > 0 else 1.0
                scale = 1 / rejected if rejected > 0 else 0.0
                for k in range(kept):
                    on[b, at, k] *= scale
                off[b, at] *= scale
                factor[b, at] *= scale
                allowance[b, at] = left * scale
                q[b, at, mine] = 0.0
                reach[b, slot] = reach[b, at] * chance
                reach[b, at] *= 1 - chance
            if limit:
                allowance[b, slot] = chance
                off[b, slot] *= chance
                factor[b, slot] *= chance
                for k in range(kept):
                    on[b, slot, k] *= chance
