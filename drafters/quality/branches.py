"""The likeliest complete blocks of a drafter, under its own distribution."""

from __future__ import annotations

import torch
from torch import Tensor

from jetspec_sglang.tree import Expander

BEAM = 32  # unfinished blocks that are kept at each depth


def best_branches(
    expander: Expander, anchors: Tensor, depth: int, count: int, beam: int = BEAM
) -> tuple[Tensor, Tensor]:
    """Behind anchors [A] int64: tokens [A, count, depth] int64 and the log-probability of each, fp32, likeliest first.

    Exact where rows are shared by all paths, as long as beam and the rows' width are at least `count`: what
    follows does not depend on the path, so a block among the best has beginnings among the best. With rows of
    their own for each path it is a beam search. Equally likely blocks come in the order of their candidates.
    There are fewer than `count` if the rows don't make as many.
    """
    tokens, parents = anchors[:, None], torch.zeros_like(anchors[:, None])
    paths = anchors.new_empty(len(anchors), 1, 0)
    steps = paths.float()
    joint = torch.zeros_like(tokens, dtype=torch.float64)
    for level in range(depth):
        rows = expander(tokens, parents, level)
        joint, order = (joint[..., None] + rows.logprobs).flatten(1).sort(descending=True, stable=True)
        joint, order = joint[:, :beam], order[:, :beam]
        parents = order // rows.logprobs.shape[2]
        tokens = rows.token_ids.flatten(1).gather(1, order)
        paths = _longer(paths, parents, tokens)
        steps = _longer(steps, parents, rows.logprobs.flatten(1).gather(1, order))
    return paths[:, :count], steps[:, :count]


def _longer(paths: Tensor, parents: Tensor, last: Tensor) -> Tensor:
    """Paths [A, F, d] continued: path `parents` [A, K] with `last` [A, K] behind it -> [A, K, d + 1]."""
    before = paths.gather(1, parents[..., None].expand(-1, -1, paths.shape[2]))
    return torch.cat((before, last[..., None]), dim=2)
