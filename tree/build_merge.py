"""The level-by-level build where rows have a bonus and a node's key can exceed its parent's.

There the best-first order is not a sort by key: a node comes as early as it can, that is right after its
parent if its key is larger than all others still to come. But adding a leaf to a tree doesn't change the order
of the nodes already there. So the order is kept for the whole tree and each level is merged into it: a new
node's place is in front of the first node *after its parent* that has a smaller key, which is a search in the
running minimum of the keys from the parent on. New nodes in front of the same one are in order of key.

Only the best N nodes are kept, since more leaves can only push a node back.
"""

import torch
from torch import Tensor

from .build_levels import NEVER, inverse, padded, pick
from .score import ScoredRows
from .token_tree import NONE, TokenTree


class Merge:
    """Growth with bonuses. Nodes `[B, M]` are in best-first order; those never drafted have key -inf."""

    def __init__(self, anchors: Tensor, budget: int) -> None:
        self.budget = budget
        self.level = 0
        self.token = anchors[:, None]
        self.parent = torch.full_like(self.token, NONE)
        self.above = self.depth = torch.zeros_like(self.token)  # above: the parent's index in its frontier
        self.key = self.score = self.logprob = torch.zeros_like(self.token, dtype=torch.float32)
        self._find_last_level(1)

    def extend(self, rows: ScoredRows, width: int) -> None:
        batch, known = self.key.shape
        at, ranks = self.last[:, :width], rows.edges.shape[2]
        score = torch.where(self.in_last[:, :width], self.score.gather(1, at), NEVER)[:, :, None] + rows.edges
        bonus = torch.zeros_like(rows.edges[:, :, 0]) if rows.bonus is None else rows.bonus
        key = score + bonus[:, :, None]
        key = torch.where(key.isfinite(), key, NEVER)

        # place[b, f, w]: how many of the known nodes come before candidate w of node f.
        later = torch.arange(known, device=at.device) > at[:, :, None]
        lowest = torch.where(later, self.key[:, None], float("inf")).cummin(2).values
        place = torch.searchsorted(-lowest, -key, right=True)

        key, order = key.flatten(1).sort(dim=1, descending=True, stable=True)
        place = place.flatten(1).gather(1, order)
        candidates = {
            "token": pick(rows.token_ids, order),
            "parent": at.gather(1, order // ranks),
            "above": order // ranks,
            "depth": torch.full_like(order, self.level + 1),
            "key": key,
            "score": score.flatten(1).gather(1, order),
            "logprob": (self.logprob.gather(1, at)[:, :, None] + rows.logprobs).flatten(1).gather(1, order),
        }
        old = torch.arange(known, device=at.device).expand(batch, -1)
        merged = torch.cat([2 * place, 2 * old + 1], 1).sort(dim=1, stable=True).indices
        new_place = inverse(merged)[:, -known:]
        merged = merged[:, : self.budget]
        for name, column in candidates.items():
            setattr(self, name, torch.cat([column, getattr(self, name)], 1).gather(1, merged))
        self.parent = torch.where(self.parent >= 0, new_place.gather(1, self.parent.clamp(min=0)), NONE)
        self.level += 1
        self._find_last_level(min(width * ranks, self.key.shape[1]))

    def worth(self, most: int) -> int:
        """A child's bonus may lift it above its parent, so all."""
        return min(most, self.tokens.shape[1])

    def _find_last_level(self, most: int) -> None:
        """Where the nodes of the last level are, best first, and which of these places hold one."""
        in_level = (self.depth == self.level) & (self.key > NEVER)
        in_level, places = in_level.to(torch.int8).sort(dim=1, descending=True, stable=True)
        self.last, self.in_last = places[:, :most], in_level[:, :most] > 0
        self.tokens = self.token.gather(1, self.last)
        self.parents = self.above.gather(1, self.last)

    def tree(self) -> TokenTree:
        return padded(
            self.token, self.parent, self.depth, self.logprob, drafted=self.key > NEVER, budget=self.budget
        )
