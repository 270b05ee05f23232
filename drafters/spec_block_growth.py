"""The trees of a spec-block head: each forward starts blocks at the nodes that need one most, at any position.

A block's later positions know the tokens before them only through its own states, which is as good as knowing the
likeliest ones. So a block speaks for its *line*, the nodes of its likeliest tokens. A node that leaves the line, and a
line's end, wants a block of its own, which inherits the state of the position that drafted it (SpecBlock: "each new
block can start from any position of the previous block"). Until it has one, a node that left the line reads the block
that it left, and nothing follows a line's end.

    forward 1       a block at the anchor
    forward 2, ...  of the best tree by what is known so far, the first `FRONTIER` nodes that want a block get one

There are as many forwards as the likeliest path needs, one for each K depths. Each changes rows below its nodes, so
the tree is built again after it, the last time for good.

Letters in shapes as in `spec_block_expander`; S blocks so far, N nodes of a tree, D depths.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jetspec_sglang.tree import NONE, DraftProposal, TokenTree

from .head_config import FRONTIER
from .spec_block_expander import Blocks, rows_at, states_at

NEVER = float("-inf")
NOWHERE = -2  # in a path that no node has


class SpecBlockGrowth:
    """`tree.GrowingExpander`. Nothing waits for an accelerator, and no step is per node."""

    def __init__(self, blocks: Blocks) -> None:
        self.blocks, self.forwards = blocks, 0
        self.depth = blocks.config.block_size - 1
        # A place is a position of a block, `block * (K + 1) + position`. Behind a block's last position there is one
        # more, which has a row of no candidates.
        self.stride = blocks.config.positions + 1
        self.outputs: Tensor | None = None  # [B, S * (K + 1), H]
        self.drafted: DraftProposal | None = None  # [B, S * (K + 1), W]
        self.starts: Tensor | None = None  # [B, S, D], paths to the nodes with blocks, NONE behind their ends
        self.places = self.paths = torch.empty(0)  # [B, F] and [B, F, d] of the level before

    @property
    def reach(self) -> int:
        """Depths that there may be rows for."""
        return self.blocks.config.positions * max(1, self.forwards)

    def __call__(self, tokens: Tensor, parents: Tensor, depth: int) -> DraftProposal:
        """tokens, parents [B, F] int64."""
        if depth == 0:
            self.places, self.paths = torch.zeros_like(tokens), tokens[..., None][..., :0]
            if self.forwards == 0:
                root = torch.full((*tokens.shape, self.depth), NONE, device=tokens.device)
                self._start(tokens, torch.zeros_like(tokens), root, None)
        else:
            above = self.paths.gather(1, parents[..., None].expand(-1, -1, depth - 1))
            self.paths = torch.cat((above, tokens[..., None]), dim=-1)
            own = self._own(self.paths)
            self.places = torch.where(own == NONE, self.places.gather(1, parents) + 1, own * self.stride)
        assert self.drafted is not None
        # Below a row of no candidates there are none that count.
        return rows_at(self.drafted, self.places.clamp(max=self.drafted.depth - 1))

    def grow(self, tree: TokenTree, depth: int) -> bool:
        """Run a forward over the nodes of the best ``tree`` so far that want a block; False if no more is to come.

        depth: of the trees that will be verified.
        """
        if self.forwards >= self.blocks.config.forwards(depth):
            return False
        wanting, paths, above = self._wanting(tree, depth)
        most = min(FRONTIER, tree.budget - 1)
        if on_cpu(wanting):  # elsewhere the host would have to wait for it
            most = min(most, int(wanting.sum(1).max()))
        if most == 0:
            return False
        chosen = (~wanting).long().argsort(dim=1, stable=True)[:, :most]
        real = wanting.gather(1, chosen)
        assert self.outputs is not None
        tokens = tree.tokens.gather(1, chosen).clamp(min=0)  # those of no node are of no use
        self._start(
            tokens,
            torch.where(real, tree.depth.gather(1, chosen), 0),
            torch.where(real[..., None], paths.gather(1, _wide(chosen, paths)), NOWHERE),
            states_at(self.outputs, above.gather(1, chosen)),
        )
        return True

    def _wanting(self, tree: TokenTree, depth: int) -> tuple[Tensor, Tensor, Tensor]:
        """Nodes that want a block [B, N] bool, their paths [B, N, D], and their parents' places [B, N]."""
        assert self.drafted is not None
        tokens, parents = tree.tokens, tree.parent.clamp(min=0)
        places, above = torch.zeros_like(tokens), torch.zeros_like(tokens)
        paths = torch.full((*tokens.shape, self.depth), NONE, device=tokens.device)
        on_line = tree.depth == 0
        wanting = torch.zeros_like(on_line)
        likeliest = self.drafted.token_ids[..., 0]
        for level in range(1, min(depth, self.reach + 1)):  # what is as deep as trees get needs no children
            here = tree.depth == level
            path = paths.gather(1, _wide(parents, paths))
            path[..., level - 1] = tokens
            paths = torch.where(here[..., None], path, paths)
            before = places.gather(1, parents)
            own = self._own(path[..., :level])
            begun, along = own != NONE, on_line.gather(1, parents)
            stays = along & (tokens == likeliest.gather(1, before))
            places = torch.where(here, torch.where(begun, own * self.stride, before + 1), places)
            above = torch.where(here, before, above)
            on_line = torch.where(here, begun | stays, on_line)
            ends = places % self.stride == self.stride - 1
            # Below a node that has left the line and has no block yet, rows are to change: it comes first.
            wanting |= here & along & ~begun & (~stays | ends)
        return wanting, paths, above

    def _own(self, paths: Tensor) -> Tensor:
        """The block that starts at each node, NONE for those without; of nodes at one depth d, paths [B, F, d]."""
        assert self.starts is not None
        depth = paths.shape[-1]
        ends = (self.starts[..., depth : depth + 1] == NONE).all(-1)
        same = (self.starts[:, None, :, :depth] == paths[:, :, None]).all(-1) & ends[:, None]
        found, block = same.int().max(-1)
        return torch.where(found > 0, block, NONE)

    def _start(self, tokens: Tensor, depths: Tensor, paths: Tensor, inherited: Tensor | None) -> None:
        """Blocks at nodes [B, F], whose paths are [B, F, D]."""
        self.forwards += 1
        outputs, rows = self.blocks.run(tokens, depths, inherited)
        size = self.blocks.config.positions
        outputs, ids, logprobs = (
            _one_more(x, size, fill)
            for x, fill in ((outputs, 0), (rows.token_ids, 0), (rows.logprobs, NEVER))
        )
        entropy = None if rows.entropy is None else _one_more(rows.entropy[..., None], size, 0)[..., 0]
        rows = DraftProposal(ids, logprobs, entropy)
        if self.outputs is None or self.drafted is None or self.starts is None:
            self.outputs, self.drafted, self.starts = outputs, rows, paths
            return
        self.outputs = torch.cat((self.outputs, outputs), dim=1)
        self.drafted = _behind(self.drafted, rows)
        self.starts = torch.cat((self.starts, paths), dim=1)


def on_cpu(values: Tensor) -> bool:
    return values.device.type == "cpu"


def _behind(rows: DraftProposal, more: DraftProposal) -> DraftProposal:
    entropy = None
    if rows.entropy is not None and more.entropy is not None:
        entropy = torch.cat((rows.entropy, more.entropy), dim=1)
    ids = torch.cat((rows.token_ids, more.token_ids), dim=1)
    return DraftProposal(ids, torch.cat((rows.logprobs, more.logprobs), dim=1), entropy)


def _one_more(values: Tensor, size: int, fill: float) -> Tensor:
    """Blocks of entries, values [B, F * size, C], each with one more behind it."""
    blocks = values.unflatten(1, (-1, size))
    return torch.nn.functional.pad(blocks, (0, 0, 0, 1), value=fill).flatten(1, 2)


def _wide(index: Tensor, values: Tensor) -> Tensor:
    """index [B, K] for gathering whole entries of values [B, N, D]."""
    return index[..., None].expand(-1, -1, values.shape[-1])
