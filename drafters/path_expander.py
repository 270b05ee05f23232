"""Trees over corrected rows: one pass of a block head, then a batched call of its corrector a level."""

from __future__ import annotations

from torch import Tensor

from jetspec_sglang.tree import DraftProposal

from .path_corrector import Corrector, Embed, corrected, corrections


def candidates_needed(corrector: Corrector, width: int, vocab_size: int) -> int:
    """How many of a row's tokens `CorrectedExpander` must be given, so that it can answer with `width` of them."""
    return min(max(corrector.config.candidates, width), vocab_size)


class CorrectedExpander:
    """`tree.Expander` for the trees of one block pass. Nothing waits for the device, and no step is per node.

    It may be asked for any number of nodes a level, since a node costs no forward.
    """

    def __init__(
        self, corrector: Corrector, embed: Embed, hidden: Tensor, block: DraftProposal, width: int
    ) -> None:
        """hidden [B, D, H]: what the corrector reads of the block's outputs for each depth; block: its uncorrected rows
        [B, D, K], with K as `candidates_needed` says. Answers have ``width`` candidates, and the entropy if ``block``
        has it."""
        self.corrector, self.embed, self.block, self.width = corrector, embed, block, width
        self.slots = corrector.of_slots(hidden)
        changed = block.token_ids[..., : corrector.config.candidates]
        self.candidates = corrector.candidates(changed, embed)  # [B, D, C, r]
        self.states: Tensor | None = None  # [B, F, s], of the nodes of the level before

    def __call__(self, tokens: Tensor, parents: Tensor, depth: int) -> DraftProposal:
        """tokens, parents [B, F] int64."""
        above = None
        if depth > 0:
            assert self.states is not None  # levels are asked for in order
            above = self.states.gather(1, parents[..., None].expand(-1, -1, self.states.shape[-1]))
        self.states = self.corrector.advance(tokens, above, self.embed)
        entropy = self.block.entropy
        ids = self.block.token_ids[:, depth, None].expand(-1, tokens.shape[1], -1)
        logprobs = self.block.logprobs[:, depth, None].expand_as(ids)
        spread = None if entropy is None else entropy[:, depth, None].expand_as(tokens)
        if depth >= self.corrector.config.skip:
            queries = self.corrector.queries(self.slots[:, depth, None], self.states)
            changes = corrections(queries, self.candidates[:, depth])
            logprobs, spread = corrected(logprobs, changes, spread)
            logprobs, order = logprobs.sort(dim=-1, descending=True, stable=True)
            ids = ids.gather(-1, order[..., : self.width])
        width = self.width
        return DraftProposal(ids[..., :width], logprobs[..., :width], spread)
