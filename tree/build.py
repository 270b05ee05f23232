"""From candidates to token trees: checks, scores, then the faster builder of the device."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from .build_heap import build_heap
from .build_tensor import build_by_rows, build_tensor, usable
from .host_values import host_values
from .proposal import DraftProposal
from .score import DEFAULT_SCORING, ScoredRows, score_rows, scoring_policy
from .token_tree import TokenTree

EXPANSIONS = ("optimal", "eager")


def build_tree(
    proposal: DraftProposal,
    anchors: Tensor,
    budget: int,
    *,
    width: int | None = None,
    depth: int | None = None,
    scoring: str = DEFAULT_SCORING,
    expansion: str = "optimal",
    budgets: Sequence[int] | Tensor | None = None,
) -> TokenTree:
    """Trees of `budget` nodes, root included, for every request of the batch.

    anchors: `[B]` int64, the last committed tokens. `width` and `depth` use fewer candidates and rows than
    the proposal has. `scoring` names a policy, as `score.scoring_policy` reads it. `expansion` is "optimal",
    the N nodes of largest key, or "eager", the paper's: all children of a node at once. `budgets`, `[B]`
    int64 or a list, gives request b at most `budgets[b]` nodes, 1 to `budget`. The result always has N =
    budget slots; what a request doesn't use is padding. Budget 1 is the root alone: plain decoding.

    All builders of an expansion give the same tree, bit for bit and ties included (`build_reference` has the
    ranking rules), and trees nest: the n-node tree is the first n nodes of the m-node tree. On an accelerator
    nothing waits for the device, so there the values of a tensor `budgets` are not checked.

    Raises ValueError on a wrong size, shape, dtype or name, and where the policy needs entropy that the
    proposal doesn't have.
    """
    batch = proposal.batch_size
    _check_sizes(anchors, budget, budgets, batch)
    if expansion not in EXPANSIONS:
        raise ValueError(f"unknown expansion {expansion!r}; known: {', '.join(EXPANSIONS)}")
    proposal = proposal.corner(
        _within("depth", depth, proposal.depth), _within("width", width, proposal.width)
    )
    rows = score_rows(scoring_policy(scoring), proposal, range(proposal.depth))
    build = build_heap if anchors.device.type == "cpu" else build_tensor
    return build(rows, anchors, budget, sizes=budgets, eager=expansion == "eager")


class Expander(Protocol):
    """A drafter whose rows depend on the drafted path, asked level by level."""

    def __call__(self, tokens: Tensor, parents: Tensor, depth: int) -> DraftProposal:
        """Candidates for the children of a frontier: a row for each of its F nodes, `[B, F, W]`.

        tokens:  `[B, F]` int64, the nodes' tokens. At depth 0 the anchors, F = 1.
        parents: `[B, F]` int64, each node's parent as an index into the frontier of the call before, by which
                 state kept per node is gathered again; 0 at depth 0.

        W must be the `width` that was asked for, and entropy must be there if the policy needs it. A frontier
        has the same F whatever the scores are; where a request has fewer nodes, the rest holds candidates
        that were not drafted, and their rows are ignored.
        """


def build_tree_by_path(
    expander: Expander,
    anchors: Tensor,
    budget: int,
    *,
    width: int,
    depth: int,
    frontier: int | None = None,
    scoring: str = DEFAULT_SCORING,
    budgets: Sequence[int] | Tensor | None = None,
) -> TokenTree:
    """The optimal prefix trees of a drafter with one row a node; the other arguments as in `build_tree`.

    The expander is called once for each of the first min(depth, budget - 1) depths, with the best `frontier`
    nodes of that depth (the best budget - 1 if None, which is all that can matter): an autoregressive drafter
    runs a forward over so many. A node outside of the frontier is a leaf. Nothing waits for the device. On a CPU,
    where scores can be looked at, it is asked only for nodes that can still have a child in the tree, and no
    more once there are none; the tree is the same.

    Raises ValueError as `build_tree` does, and for an answer of the wrong shape.
    """
    batch = len(anchors)
    _check_sizes(anchors, budget, budgets, batch)
    for name, value in (("width", width), ("depth", depth), ("frontier", frontier)):
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}, but must be at least 1")
    policy = scoring_policy(scoring)

    def row_of(level: int, tokens: Tensor, parents: Tensor) -> ScoredRows:
        proposal = expander(tokens, parents, level)
        expected = (*tokens.shape, width)
        if proposal.token_ids.shape != expected:
            raise ValueError(
                f"the expander gave {tuple(proposal.token_ids.shape)}, not [B, F, W] = {expected}"
            )
        return usable(score_rows(policy, proposal, range(level, level + 1)))

    tree = build_by_rows(row_of, anchors, budget, depth=depth, frontier=frontier or budget)
    return tree if budgets is None else tree.shortened(host_values(budgets, anchors.device))


def _check_sizes(anchors: Tensor, budget: int, budgets: Sequence[int] | Tensor | None, batch: int) -> None:
    if budget < 1:
        raise ValueError(f"budget counts the root, so it is at least 1; got {budget}")
    if anchors.shape != (batch,) or anchors.dtype != torch.int64:
        raise ValueError(f"anchors must be int64 [{batch}], got {anchors.dtype} {tuple(anchors.shape)}")
    if budgets is None:
        return
    if isinstance(budgets, Tensor):
        if budgets.shape != (batch,) or budgets.dtype != torch.int64:
            raise ValueError(f"budgets must be int64 [{batch}], got {budgets.dtype} {tuple(budgets.shape)}")
        if budgets.device.type != "cpu":
            return
        budgets = budgets.tolist()
    if len(budgets) != batch or not all(1 <= value <= budget for value in budgets):
        raise ValueError(f"budgets must be {batch} numbers from 1 to {budget}, got {list(budgets)}")


def _within(name: str, value: int | None, limit: int) -> int:
    if value is None:
        return limit
    if not 1 <= value <= limit:
        raise ValueError(f"{name} {value} is outside 1..{limit}, what the proposal has")
    return value
