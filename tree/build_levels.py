"""The optimal prefix tree in tensor operations: level by level, no wait for the device.

A node among the best N of the whole tree is among the best N of its depth, and so is its parent. It is
enough, then, to carry the best N nodes of each depth, the *frontier*, to the next one (F x W candidates).
Shapes depend on B, D, W, N and F alone, hence the whole build can be captured in a CUDA graph.

Where rows come from does not matter. A one-pass proposal has one row a depth, shared by all nodes; a drafter
that conditions on the drafted path has one a node, and drafts a level when it is told the level's frontier.
What matters is whether rows have a bonus. Without one keys never grow along a path: sorting levels is enough
(`Levels`, here). With one a node can outrank its parent and the order needs the whole tree (`build_merge`).
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from .score import ScoredRows
from .token_tree import NONE, TokenTree

NEVER = float("-inf")

RowSource = Callable[[int, Tensor, Tensor], ScoredRows]
"""Rows `[B, F, W]` for the children of a frontier, or `[B, 1, W]` for all of them alike: from its depth, its
tokens `[B, F]` and the index of each one's parent in the frontier before, `[B, F]`, both int64.

Where a level has fewer than F nodes, the rest of its frontier are candidates that were never drafted, with the
tokens that their rows hold; what their own rows say is not used."""


class Growth(Protocol):
    """Trees under construction."""

    tokens: Tensor  # [B, K] of the last level's nodes, best first
    parents: Tensor  # [B, K], each one's parent as an index into the level before

    def extend(self, rows: ScoredRows, width: int) -> None:
        """Add the children of the first `width` nodes of the last level."""

    def worth(self, most: int) -> int:
        """How many nodes of the last level to extend: at most `most`, and all that can have a child in the tree."""

    def tree(self) -> TokenTree:
        """What has grown."""


class Levels:
    """Growth without bonuses: each level is sorted by itself, and all of them once at the end.

    Stable sorts realise the tie rules of `build_reference`: candidates are laid out by parent and then rank,
    and levels are concatenated by depth, so that equal scores stay in that order.
    """

    def __init__(self, anchors: Tensor, budget: int) -> None:
        self.budget = budget
        self.tokens = anchors[:, None]
        self.parents = torch.full_like(self.tokens, NONE)
        self.score = self.logprob = torch.zeros_like(self.tokens, dtype=torch.float32)
        self.done = [(self.tokens, self.parents, self.score, self.logprob)]
        self.best = self.score  # [B, <= N], of all levels so far
        self.start = 0  # where the last level begins in the concatenation

    def extend(self, rows: ScoredRows, width: int) -> None:
        score = (self.score[:, :width, None] + rows.edges).flatten(1)
        score, order = score.sort(dim=1, descending=True, stable=True)
        score, order = score[:, : self.budget - 1], order[:, : self.budget - 1]
        if rows.logprobs is rows.edges:
            logprob = score
        else:
            logprob = (self.logprob[:, :width, None] + rows.logprobs).flatten(1).gather(1, order)
        start = self.start
        self.start += self.tokens.shape[1]
        self.tokens, self.parents = pick(rows.token_ids, order), order // rows.edges.shape[2]
        self.score, self.logprob = score, logprob
        self.done.append((self.tokens, start + self.parents, score, logprob))

    def worth(self, most: int) -> int:
        """A child comes after the N nodes that are best so far unless its parent is better than the last of them. On an
        accelerator the host would have to wait for scores, so there it is all."""
        last = self.score[:, :most]
        if last.device.type != "cpu":
            return last.shape[1]
        best = torch.cat([self.best, self.score], 1)
        self.best = best.topk(min(self.budget, best.shape[1])).values
        least = self.best[:, -1:] if self.best.shape[1] == self.budget else NEVER
        return int((last > least).sum(1).max())

    def tree(self) -> TokenTree:
        sizes = [len(level[0][0]) for level in self.done]
        tokens, parents, score, logprob = (torch.cat(field, 1) for field in zip(*self.done, strict=True))
        depth = torch.cat([torch.full((size,), d, device=score.device) for d, size in enumerate(sizes)])
        score, order = score.sort(dim=1, descending=True, stable=True)
        parents = torch.where(parents >= 0, inverse(order).gather(1, parents.clamp(min=0)), NONE)
        order = order[:, : self.budget]
        columns = (column.gather(1, order) for column in (tokens, parents, depth.expand_as(score), logprob))
        return padded(*columns, drafted=score[:, : self.budget] > NEVER, budget=self.budget)


def pick(token_ids: Tensor, order: Tensor) -> Tensor:
    """Entries of `[B, F or 1, W]` at flat candidate indices `[B, K]`, which count as if all F rows were there."""
    if token_ids.shape[1] == 1:
        return token_ids[:, 0].gather(1, order % token_ids.shape[2])
    return token_ids.flatten(1).gather(1, order)


def inverse(order: Tensor) -> Tensor:
    """Permutations `[B, K]` undone: entry i says where `order` puts i."""
    places = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, places)


def padded(
    tokens: Tensor, parent: Tensor, depth: Tensor, logprob: Tensor, *, drafted: Tensor, budget: int
) -> TokenTree:
    """A tree of `budget` slots from columns `[B, K]`, K <= budget, whose nodes, `drafted`, come first."""

    def column(values: Tensor, fill: float) -> Tensor:
        values = torch.where(drafted, values, fill)
        return torch.nn.functional.pad(values, (0, budget - values.shape[1]), value=fill)

    return TokenTree(
        column(tokens, NONE), column(parent, NONE), column(depth, 0), column(logprob, NEVER), drafted.sum(1)
    )
