"""The heads that are compared, as they draft behind a text, each asked level by level."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from jetspec_sglang.tree import DraftProposal, Expander

from ..autoregressive_head import AutoregressiveHead
from ..checkpoint import load_head_tensors, read_head_config
from ..head_config import FRONTIER, AnyHead, AutoregressiveConfig
from ..spec_block_expander import SpecBlockExpander
from ..spec_block_growth import SpecBlockGrowth
from ..spec_block_head import SpecBlockHead
from ..training.evaluate import WIDTH, corrected_expanders, draft_blocks
from ..training.expander import PathExpander, spec_blocks
from ..training.shards import Sequence
from ..training.student import DraftHead, make_head


@dataclass(frozen=True, eq=False)
class SharedRows:
    """Rows of one forward, [A, D, W], as an `Expander`: those of a depth, whatever path leads there."""

    rows: DraftProposal

    def __call__(self, tokens: Tensor, parents: Tensor, depth: int) -> DraftProposal:
        def of_depth(values: Tensor) -> Tensor:
            return values[:, depth, None].expand(-1, tokens.shape[1], -1)

        return DraftProposal(of_depth(self.rows.token_ids), of_depth(self.rows.logprobs))


@dataclass(frozen=True, eq=False)
class LoadedHead:
    label: str
    model: DraftHead
    taps: tuple[int, ...]  # layers of the target

    @property
    def depth(self) -> int:
        """Tokens that it drafts."""
        return self.model.config.block_size - 1

    @property
    def vocabulary(self) -> int:
        return draft_vocabulary(self.model.config)

    @property
    def frontier(self) -> int | None:
        """Nodes of a depth that its tree grows from; None is all of them, which cost nothing more."""
        return FRONTIER if isinstance(self.model, AutoregressiveHead) else None

    @property
    def width(self) -> int:
        """Candidates of a row."""
        return min(WIDTH, self.vocabulary)

    def expanders(
        self, embedding: Tensor, lm_head: Tensor, sequence: Sequence, anchors: Tensor
    ) -> Callable[[], Expander]:
        """What makes expanders that draft behind `anchors` [A] of a text, a fresh one each time.

        embedding and lm_head [V, H] are the target's, in the head's dtype; `sequence` holds the head's own taps.
        """
        if isinstance(self.model, AutoregressiveHead | SpecBlockHead):
            head, device = self.model, lm_head.device
            tokens, taps, at = (each.to(device) for each in (sequence.tokens, sequence.taps, anchors))
            if isinstance(head, SpecBlockHead):
                blocks = spec_blocks(head, embedding, lm_head, taps, at, self.width)
                return lambda: SpecBlockExpander(blocks)
            return lambda: PathExpander(head, embedding, lm_head, tokens, taps, at, self.width)
        if self.model.config.corrector is not None:
            make = corrected_expanders(self.model, embedding, lm_head, sequence, anchors)
            return lambda: make(self.width)
        ids, logprobs = draft_blocks(self.model, embedding, lm_head, sequence, anchors, self.width)
        shared = SharedRows(DraftProposal(ids.to(lm_head.device), logprobs.to(lm_head.device)))
        return lambda: shared


def for_trees(expander: Expander, depth: int, budget: int) -> Expander:
    """What drafts the trees that a server would verify, of what drafts complete blocks of any path."""
    if isinstance(expander, SpecBlockExpander):
        return SpecBlockGrowth(expander.blocks, depth, budget)
    return expander


def longest_block(heads: list[LoadedHead]) -> int:
    """Tokens of the longest block, the anchor included."""
    return max(head.depth for head in heads) + 1


def draft_vocabulary(config: AnyHead) -> int:
    """Tokens that a head can draft, over which its log-probabilities are normalised."""
    own = config.draft_vocab_size if isinstance(config, AutoregressiveConfig) else None
    return own or config.vocab_size


def load_head(
    label: str, folder: Path, target_layers: int, dtype: torch.dtype, device: torch.device | str
) -> LoadedHead:
    """A published head for a target of so many layers. HeadError if it can't be used."""
    config = read_head_config(folder)
    model = make_head(config)
    model.load_state_dict(load_head_tensors(folder))
    model.requires_grad_(False).to(device, dtype)
    return LoadedHead(label, model, config.taps(target_layers))
