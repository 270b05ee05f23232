"""The blocks that a spec-block head's tree is made of: each forward starts them at the nodes that need one most.

A block's later positions know the tokens before them only through its own states, which is as good as knowing the
likeliest ones. So a block speaks for its *line*, the nodes of its likeliest tokens. A node that leaves the line, and a
line's end, wants a block of its own, which inherits the state of the position that drafted it (SpecBlock: "each new
block can start from any position of the previous block"). Until it has one, a node that left the line reads the block
that it left, and nothing follows a line's end.

    forward 1       a block at the anchor
    forward 2, ...  of the nodes that want a block the `FRONTIER` likeliest get one, whatever policy scores the tree

There is a forward for each K depths, which is what one path needs to the end (it gets there if its nodes are always
among the likeliest), all before the tree is built. Nodes that want a block have parents on lines, and of these
everything is final, so no tree is needed to choose among them.

Letters in shapes as in `spec_block_expander`; S blocks in all.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from jetspec_sglang.tree import NONE, DraftProposal

from .head_config import FRONTIER
from .spec_block_expander import Blocks, rows_at, states_at

NEVER = float("-inf")


class SpecBlockGrowth:
    """`tree.Expander` for trees of at most ``budget`` nodes, up to ``depth`` deep.

    Nothing waits for an accelerator, and no step is per node.
    """

    def __init__(self, blocks: Blocks, depth: int, budget: int) -> None:
        self.blocks = blocks
        self.depth, self.budget = min(depth, budget - 1), budget
        # A place is a position of a block, `block * K + position`; the last one of all has no candidates.
        self.drafted: DraftProposal | None = None  # [B, S * K + 1, W]
        self.starts: Tensor | None = None  # [B, S], the nodes with blocks, as `_child` numbers them
        # Of the level before: the places that nodes read, [B, F] int64, and whether they are on a line, bool.
        self.places = self.on_line = torch.empty(0)

    def __call__(self, tokens: Tensor, parents: Tensor, depth: int) -> DraftProposal:
        """tokens, parents [B, F] int64."""
        if depth == 0:
            if self.drafted is None:
                self._draft(tokens)
            self.places, self.on_line = torch.zeros_like(tokens), torch.ones_like(tokens, dtype=torch.bool)
        else:
            self._descend(tokens, self.places.gather(1, parents), self.on_line.gather(1, parents))
        assert self.drafted is not None
        return rows_at(self.drafted, self.places)

    def _draft(self, anchors: Tensor) -> None:
        """All forwards, behind anchors [B, 1]."""
        lines = Lines(self.blocks.config.positions, self.depth)
        zero = torch.zeros_like(anchors)
        wave = Wave(anchors, zero, zero.float(), None, torch.full_like(anchors, NONE))
        starts = [wave.places]
        lines.add(wave, *self.blocks.run(wave.tokens, wave.depths, None))
        for _ in range(1, self.blocks.config.forwards(self.depth)):
            chosen = lines.choose(self.budget)
            if chosen is None:
                break
            starts.append(torch.where(chosen.places == NONE, NONE, self._child(chosen.places, chosen.tokens)))
            lines.add(chosen, *self.blocks.run(chosen.tokens, chosen.depths, chosen.inherited))
        self.drafted, self.starts = lines.rows_and_none(), torch.cat(starts, dim=1)

    def _descend(self, tokens: Tensor, above: Tensor, along: Tensor) -> None:
        """To nodes [B, F], by their tokens, their parents' places, and whether these are on a line."""
        assert self.drafted is not None
        assert self.starts is not None
        same = self.starts[:, None] == self._child(above, tokens)[..., None]
        found, block = same.int().max(-1)
        begun = (found > 0) & along  # children of a node off the line read what others' children do
        likeliest = self.drafted.token_ids[..., 0].gather(1, above)
        self.on_line = begun | (along & (tokens == likeliest))
        none, positions = self.drafted.depth - 1, self.blocks.config.positions
        behind = torch.where((above + 1) % positions == 0, none, above + 1).clamp(max=none)
        self.places = torch.where(begun, block * positions, behind)

    def _child(self, above: Tensor, tokens: Tensor) -> Tensor:
        """A number for each child of a node on a line: of such nodes only one reads a place."""
        return above * self.blocks.config.vocab_size + tokens


class Wave(NamedTuple):
    """Nodes that a forward starts blocks at. What is no node has the score -inf and is of no use."""

    tokens: Tensor  # [B, F] int64
    depths: Tensor  # [B, F] int64
    scores: Tensor  # [B, F], log-probabilities of their paths
    inherited: Tensor | None  # [B, F, H], outputs of the positions that drafted them; None for anchors
    places: Tensor  # [B, F] int64, those positions; NONE for anchors and what is no node


class Lines:
    """The nodes on lines and the first ones beside them: whose blocks there are, and which want one."""

    def __init__(self, positions: int, depth: int) -> None:
        """Of blocks of so many positions, in trees of that depth."""
        self.positions, self.depth = positions, depth
        self.outputs: list[Tensor] = []  # of each forward, [B, F * K, H]
        self.rows: list[DraftProposal] = []  # [B, F * K, W]
        # Of the candidates of each row:
        self.depths: list[Tensor] = []  # [B, F * K] int64
        self.scores: list[Tensor] = []  # [B, F * K, W], log-probabilities of their paths
        self.wanting: list[Tensor] = []  # [B, F * K, W] bool

    def add(self, wave: Wave, outputs: Tensor, rows: DraftProposal) -> None:
        """Blocks that were started: their outputs [B, F * K, H] and rows."""
        logprobs = rows.logprobs.unflatten(1, (-1, self.positions))  # [B, F, K, W]
        start, steps = wave.scores[..., None], torch.arange(self.positions, device=outputs.device)
        line = torch.cat((start, start + logprobs[:, :, :-1, 0].cumsum(-1)), dim=-1)
        depths = wave.depths[..., None] + steps + 1
        scores = torch.where((depths <= self.depth)[..., None], line[..., None] + logprobs, NEVER)
        off_line = torch.arange(rows.width, device=outputs.device) > 0
        leaves = off_line | (steps == self.positions - 1)[:, None]  # [K, W]
        wanting = leaves & (depths < self.depth)[..., None]  # the deepest nodes have no children
        self.outputs.append(outputs)
        self.rows.append(rows)
        self.depths.append(depths.flatten(1))
        self.scores.append(scores.flatten(1, 2))
        self.wanting.append(wanting.flatten(1, 2))

    def choose(self, budget: int) -> Wave | None:
        """The likeliest nodes that want a block, for trees of ``budget`` nodes; None if none gets one.

        A node gets none if N - 1 known ones are at least as likely: a child would not be among the N likeliest nodes.
        """
        scores, wanting = torch.cat(self.scores, dim=1), torch.cat(self.wanting, dim=1)
        width, known = scores.shape[2], scores.flatten(1)
        wanted = torch.where(wanting.flatten(1), known, NEVER)
        enough = known.shape[1] >= budget - 1
        least = known.topk(budget - 1).values[:, -1:] if enough else torch.full_like(known[:, :1], NEVER)
        most = min(FRONTIER, budget - 1, wanted.shape[1])
        if on_cpu(wanted):  # elsewhere the host would have to wait for it, and blocks of no node are run
            most = min(most, int((wanted > least).sum(1).max()))
        if most == 0:
            return None
        values, entries = wanted.sort(dim=1, descending=True, stable=True)
        values, entries = values[:, :most], entries[:, :most]
        left = wanting.flatten(1).scatter(1, entries, False).view_as(wanting)
        self.wanting = list(left.split([each.shape[1] for each in self.wanting], dim=1))
        places, real = entries // width, values > least
        return Wave(
            tokens=torch.cat([each.token_ids for each in self.rows], dim=1).flatten(1).gather(1, entries),
            depths=torch.where(real, torch.cat(self.depths, dim=1).gather(1, places), 0),
            scores=torch.where(real, values, NEVER),
            inherited=states_at(torch.cat(self.outputs, dim=1), places),
            places=torch.where(real, places, NONE),
        )

    def rows_and_none(self) -> DraftProposal:
        """All rows, and one without candidates behind them, [B, S * K + 1, W]."""
        first = self.rows[0]
        nothing = DraftProposal(
            torch.zeros_like(first.token_ids[:, :1]),
            torch.full_like(first.logprobs[:, :1], NEVER),
            None if first.entropy is None else torch.zeros_like(first.entropy[:, :1]),
        )
        return DraftProposal.cat([*self.rows, nothing])


def on_cpu(values: Tensor) -> bool:
    return values.device.type == "cpu"
