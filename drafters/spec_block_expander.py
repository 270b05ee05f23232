"""Trees of a spec-block head: a forward every K depths, and rows whose candidates the rank head weighs.

A block starts at each node of a frontier at depths 0, K, 2K, ..., and goes on from the last position of the block that
drafted the node. In between a node reads its position of the block that its ancestor started. So nodes of one block and
depth share a row: within a block only the head's own states carry the path on, not the tokens that were drafted.

The rank head moves what the row's own q says of its first R ranks, and of none of them, by an offset o for each:

    p = softmax of  log q_1 + o_1, ..., log q_R + o_R, log(1 - q_1 - ... - q_R) + o_none

The candidate of rank r gets p(r); p(none) goes to all other tokens in proportion to q, so a row still sums to one. That
is a softmax over the vocabulary with o_r added to the logit of rank r and o_none to those of all others. Offsets of
zero leave a row as it is.

Letters in shapes: B requests, F nodes of a frontier, K positions, C candidates, R ranks, H hidden.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from jetspec_sglang.tree import DraftProposal

from .head_config import SpecBlockConfig
from .path_corrector import LIMIT, corrected


class Forward(Protocol):
    def __call__(self, tokens: Tensor, depth: int, inherited: Tensor) -> Tensor:
        """Run a block from each node: what `SpecBlockHead.forward` gives, [B, F, K, H].

        tokens [B, F] int64, at that depth below the anchors; inherited [B, F, H]: what it gave for the positions that
        the tokens were drafted from, zeros (float32) for the anchors.
        """


class Rows(Protocol):
    def __call__(self, outputs: Tensor, kept: int, entropy: bool) -> tuple[DraftProposal, Tensor]:
        """Of outputs [B, N, H], the ``kept`` likeliest tokens by the lm_head, [B, N, kept], with the rows' entropy if
        asked for, and the rank head's offsets [B, N, R + 1] float32, the last one that of "none"."""


class SpecBlockExpander:
    """`tree.Expander` for the trees of one round. Nothing waits for the device, and no step is per node."""

    def __init__(
        self, config: SpecBlockConfig, forward: Forward, rows: Rows, width: int, entropy: bool = False
    ) -> None:
        """Answers have ``width`` candidates, no more than the vocabulary, and their entropy if asked for."""
        self.config, self.forward, self.rows = config, forward, rows
        self.width, self.entropy = width, entropy
        # Of the level before: [B, F], the block that each node reads, an index into the blocks' [B, F', ...].
        self.blocks: Tensor | None = None
        self.last: Tensor | None = None  # [B, F', H], outputs of the blocks' last positions
        self.drafted: list[DraftProposal] = []  # for each position the blocks' rows, [B, F', W]

    def __call__(self, tokens: Tensor, parents: Tensor, depth: int) -> DraftProposal:
        """tokens, parents [B, F] int64."""
        above = None
        if depth > 0:
            assert self.blocks is not None  # levels are asked for in order
            above = self.blocks.gather(1, parents)
        position = depth % self.config.positions
        if position == 0:
            self._start(tokens, above, depth)
        else:
            self.blocks = above
        assert self.blocks is not None
        rows = self.drafted[position]
        each = self.blocks[..., None].expand(-1, -1, self.width)
        entropy = None if rows.entropy is None else rows.entropy.gather(1, self.blocks)
        return DraftProposal(rows.token_ids.gather(1, each), rows.logprobs.gather(1, each), entropy)

    def _start(self, tokens: Tensor, above: Tensor | None, depth: int) -> None:
        """New blocks at tokens [B, F], drafted by the blocks above [B, F]."""
        size = self.config.hidden_size
        if above is None:
            inherited = torch.zeros(*tokens.shape, size, device=tokens.device)
        else:
            assert self.last is not None
            inherited = self.last.gather(1, above[..., None].expand(-1, -1, size))
        outputs = self.forward(tokens, depth, inherited)
        self.last = outputs[:, :, -1]
        self.blocks = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        self.drafted = self._rows(outputs)

    def _rows(self, outputs: Tensor) -> list[DraftProposal]:
        """outputs [B, F, K, H] -> for each position [B, F, W]."""
        # As many as asked for, even if the best are all behind the ranks.
        kept = min(self.config.ranks + self.width, self.config.vocab_size)
        proposal, offsets = self.rows(outputs.flatten(1, 2), kept, self.entropy)
        order, logprobs, entropy = ranked(proposal.logprobs, offsets, proposal.entropy)
        ids = proposal.token_ids.gather(-1, order)
        shape = outputs.shape[1:3]
        ids, logprobs = (x[..., : self.width].unflatten(1, shape).unbind(2) for x in (ids, logprobs))
        spreads = [None] * shape[1] if entropy is None else entropy.unflatten(1, shape).unbind(2)
        return [DraftProposal(*row) for row in zip(ids, logprobs, spreads, strict=True)]


def ranked(
    logprobs: Tensor, offsets: Tensor, entropy: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Candidates as the rank head weighs them, the likeliest first: indices into them, and their log-probabilities.

    logprobs [..., C] float32: full-vocabulary ones of a row's C >= R likeliest tokens, largest first; offsets
    [..., R + 1] float32: of the ranks, and of none of them. entropy [...]: of the whole row before, None if nobody
    asks. -> order [..., C] int64, log-probabilities [..., C] in that order, and the row's entropy after, in nats.
    Offsets that are all alike change no log-probability by a bit.
    """
    # A softmax knows differences only: what all others get may as well be taken from the ranks.
    changes = (offsets[..., :-1] - offsets[..., -1:]).clamp(-LIMIT, LIMIT)
    after, spread = corrected(logprobs, changes, entropy)
    after, order = after.sort(dim=-1, descending=True, stable=True)
    return order, after, spread
