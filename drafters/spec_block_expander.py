"""Rows of a spec-block head for a tree's nodes, level by level, and what the rank head makes of them.

A node reads a position of a block: its own block's first one if a block was started at it, else the position behind
its parent's. So nodes of one block and depth share a row: within a block only the head's own states carry the path on,
not the tokens that were drafted. Here a block starts at each node of a frontier at depths 0, K, 2K, ..., and goes on
from the last position of the block that drafted the node: complete paths of any depth. `spec_block_growth` makes the
trees that are verified, with blocks wherever they are of most use.

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
    def __call__(self, tokens: Tensor, depths: Tensor, inherited: Tensor) -> Tensor:
        """Run a block from each node: what `SpecBlockHead.forward` gives, [B, F, K, H].

        tokens and depths below the anchors [B, F] int64; inherited [B, F, H]: what it gave for the positions that the
        tokens were drafted from, zeros (float32) for the anchors.
        """


class Rows(Protocol):
    def __call__(self, outputs: Tensor, kept: int, entropy: bool) -> tuple[DraftProposal, Tensor]:
        """Of outputs [B, N, H], the ``kept`` likeliest tokens by the lm_head, [B, N, kept], with the rows' entropy if
        asked for, and the rank head's offsets [B, N, R + 1] float32, the last one that of "none"."""


class Blocks:
    """The blocks of one round and their rows. Nothing waits for the device, and no step is per node."""

    def __init__(
        self, config: SpecBlockConfig, forward: Forward, rows: Rows, width: int, entropy: bool = False
    ) -> None:
        """Rows have ``width`` candidates, no more than the vocabulary, and their entropy if asked for."""
        self.config, self.forward, self.rows = config, forward, rows
        self.width, self.entropy = width, entropy

    def run(self, tokens: Tensor, depths: Tensor, inherited: Tensor | None) -> tuple[Tensor, DraftProposal]:
        """Blocks from nodes as `Forward` says, None for anchors: outputs [B, F * K, H] of their positions, and rows."""
        if inherited is None:
            inherited = torch.zeros(*tokens.shape, self.config.hidden_size, device=tokens.device)
        outputs = self.forward(tokens, depths, inherited).flatten(1, 2)
        # As many as asked for, even if the best are all behind the ranks.
        kept = min(self.config.ranks + self.width, self.config.vocab_size)
        proposal, offsets = self.rows(outputs, kept, self.entropy)
        order, logprobs, entropy = ranked(proposal.logprobs, offsets, proposal.entropy)
        ids = proposal.token_ids.gather(-1, order)
        return outputs, DraftProposal(ids[..., : self.width], logprobs[..., : self.width], entropy)


def rows_at(rows: DraftProposal, places: Tensor) -> DraftProposal:
    """Of rows [B, P, W] those at places [B, F] int64."""
    each = places[..., None].expand(-1, -1, rows.width)
    entropy = None if rows.entropy is None else rows.entropy.gather(1, places)
    return DraftProposal(rows.token_ids.gather(1, each), rows.logprobs.gather(1, each), entropy)


def states_at(outputs: Tensor, places: Tensor) -> Tensor:
    """Of outputs [B, P, H] those at places [B, F] int64."""
    return outputs.gather(1, places[..., None].expand(-1, -1, outputs.shape[-1]))


class SpecBlockExpander:
    """`tree.Expander` that starts a block at every node whose parent read a last position."""

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        # Of the level before: [B, F], which of the blocks' positions each node reads, `block * K + position`.
        self.places: Tensor | None = None
        self.outputs: Tensor | None = None  # [B, F' * K, H]
        self.drafted: DraftProposal | None = None  # [B, F' * K, W]

    def __call__(self, tokens: Tensor, parents: Tensor, depth: int) -> DraftProposal:
        """tokens, parents [B, F] int64."""
        above = None
        if depth > 0:
            assert self.places is not None  # levels are asked for in order
            above = self.places.gather(1, parents)
        positions = self.blocks.config.positions
        if depth % positions == 0:
            inherited = None
            if above is not None:
                assert self.outputs is not None
                inherited = states_at(self.outputs, above)
            depths = torch.full_like(tokens, depth)
            self.outputs, self.drafted = self.blocks.run(tokens, depths, inherited)
            first = torch.arange(0, tokens.shape[1] * positions, positions, device=tokens.device)
            self.places = first.expand_as(tokens)
        else:
            assert above is not None
            self.places = above + 1
        assert self.drafted is not None
        return rows_at(self.drafted, self.places)


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
