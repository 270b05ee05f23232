"""Sampled trees: children drawn from the drafter's rows, which is what rejection and traversal verify.

The shape comes first, the tokens second:

    law = drafting_law(proposal, temperatures)
    tree = draw_tree(build_tree(drawable(proposal, law), anchors, budget), law, dice)

Where the deterministic tree has a parent's candidate of rank r, the sampled one has that parent's draw number
r. This is legal because the deterministic tree is a function of the rows alone: no draw was looked at to decide
which slots exist. Any such shape is. The one over the drafter's own probabilities, not over those at the
request's temperature, was measured to accept most: a temperature below 1 makes it a near-chain, whose draws then
miss too often. Given the shape, then, a parent's children *are* draws from its row without replacement,
independent of all other parents' (rows are shared by all parents of a depth, draws are not), and this is all
that the verifiers' exactness rests on. Cutting, widening or sorting a tree by what was drawn would break it. A
prefix of the slots is a sampled tree again, since it is chosen by slot number.

The drafting law q of a row lies on its K candidates, renormalised; nothing else is ever drawn. Verification is
exact for every q, so K is a matter of cost: with K = V it is the drafter's full distribution, with fewer it is
cut off behind the most probable ones, and verification touches K numbers a node instead of V.
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from .dice import Dice
from .proposal import DraftProposal
from .token_tree import TokenTree

LEAST_LOGPROB = -80.0
"""Candidates less probable than e^-80 are not drafted. Their probabilities then stay far above what a float can't
hold, so that a parent never runs out of probability before it runs out of candidates."""


@dataclass(frozen=True, eq=False)
class SampledTree(TokenTree):
    """A `TokenTree` whose tokens were drawn, with the law they were drawn from.

    Siblings are in draw order: among the children of a parent a smaller slot is an earlier draw. `logprob` stays
    that of the shape, the path log-probability of the deterministic tree's tokens: whoever cuts a tree by it
    doesn't look at what was drawn.

    candidates: `[B, D, K]` int64, the tokens of each depth's row.
    draft:      `[B, D, K]` fp64, their probabilities q; each row sums to 1.
    pick:       `[B, N]` int64, a node's index among the candidates of its depth; 0 for root and padding.
    """

    candidates: Tensor
    draft: Tensor
    pick: Tensor

    def prefix(self, budget: int) -> "SampledTree":
        cut = super().prefix(budget)
        return SampledTree(
            **vars(cut), candidates=self.candidates, draft=self.draft, pick=self.pick[:, :budget]
        )

    def rows(self, index: Tensor) -> "SampledTree":
        return SampledTree(*(getattr(self, field.name)[index] for field in fields(self)))

    def row_of_children(self) -> Tensor:
        """`[B, N]` int64: the row that each node's children are drawn from. The deepest nodes, which can't have
        any, are given the last row."""
        return self.depth.clamp(max=self.draft.shape[1] - 1)


def drafting_law(
    proposal: DraftProposal,
    temperatures: Tensor,
    *,
    top_ks: Tensor | None = None,
    top_ps: Tensor | None = None,
    min_ps: Tensor | None = None,
) -> DraftProposal:
    """The proposal with each request's own sampling parameters applied to the draft, as they are to the target.

    temperatures, top_ps, min_ps: `[B]` float; top_ks: `[B]` int; all positive, except that a min-p may be 0.
    The result's `logprobs` are log q, of sum 1 over the candidates, and -inf for those left out; still
    non-increasing. Any law would be exact. This one leaves out what the target can't accept: a draw that top-k
    forbids is a node wasted.
    """
    logits = proposal.logprobs.to(torch.float64) / _per_request(temperatures)
    probs = logits.softmax(-1)
    keep = probs.log() >= LEAST_LOGPROB
    if top_ks is not None:
        keep &= torch.arange(proposal.width, device=probs.device) < _per_request(top_ks)
    if top_ps is not None:
        keep &= probs.cumsum(-1) - probs < _per_request(top_ps)
    if min_ps is not None:
        keep &= probs >= probs[..., :1] * _per_request(min_ps)
    keep[..., 0] = True  # the most probable one always stays, however the sums round
    law = logits.where(keep, float("-inf")).log_softmax(-1)
    return DraftProposal(proposal.token_ids, law.float(), proposal.entropy)


def drawable(proposal: DraftProposal, law: DraftProposal) -> DraftProposal:
    """The proposal without the candidates that `law`, made from it, leaves out: what to build the shape over, so
    that no parent has more children than there are candidates to draw."""
    logprobs = torch.where(law.logprobs.isfinite(), proposal.logprobs, float("-inf"))
    return DraftProposal(proposal.token_ids, logprobs, proposal.entropy)


def draw_tree(shape: TokenTree, law: DraftProposal, dice: Dice) -> SampledTree:
    """Put drawn tokens into the slots of `shape`, the deterministic trees of the same rows.

    shape: from `build_tree(drawable(proposal, law), ...)`, of any width, depth, scoring and expansion. q is the
    softmax of `law.logprobs` over each row's candidates. Nothing waits for the device.
    """
    draft = law.logprobs.to(torch.float64).softmax(-1)
    batch = torch.arange(law.batch_size, device=draft.device)[:, None]
    real, parent = shape.parent >= 0, shape.parent.clamp(min=0)

    siblings = shape.parent[:, :, None] == shape.parent[:, None, :]
    turn = torch.where(real, siblings.tril(-1).sum(-1), 0)  # which draw of its parent a node is
    children = torch.zeros_like(turn).scatter_add_(1, parent, real.to(turn.dtype))
    row_of_children = shape.depth.clamp(max=law.depth - 1)
    order = dice.order(draft[batch, row_of_children], children, min(law.width, shape.budget))
    pick = torch.where(real, order[batch, parent, turn], 0)

    row = (shape.depth - 1).clamp(min=0)
    tokens = torch.where(real, law.token_ids[batch, row, pick], shape.tokens)
    return SampledTree(
        tokens, shape.parent, shape.depth, shape.logprob, shape.size, law.token_ids, draft, pick
    )


def _per_request(values: Tensor) -> Tensor:
    return values[:, None, None]
