"""What a drafted token costs, in target passes (the paper's c, appendix G).

A draft is everything up to the candidates that a tree is built from: a one-pass head's forward over anchor and
masks, its lm_head and top-16, and its path corrector along a chain if it has one; of an autoregressive head all
levels of a chain, each with its lm_head and top-16, and of a spec-block head all blocks of one.
The head's keys and values of the context are there before, as they are in a server. The target's pass is what
verifies the drafted tokens and the anchor behind a KV cache of the context, its lm_head included. Values don't
matter for time: a block may be longer than the head was trained for, and the text is random.

This is plain torch. The heads' modules copy the context's keys and values once a layer, which the target's cache
here does not, and a server does for neither: c of a long context is a little too high.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

import torch
from torch import Tensor

from jetspec_sglang.kernels.top_k import top_k_logprobs
from jetspec_sglang.tree import Expander

from ..autoregressive_head import AutoregressiveHead
from ..causal_head import CausalParallelHead, block_mask
from ..spec_block_expander import SpecBlockExpander
from ..spec_block_head import SpecBlockHead
from ..training.evaluate import expanders_of
from ..training.expander import PathExpander, spec_blocks
from ..training.generate import SlabCache, TransformersGenerator
from ..training.target import decoder
from .answers import pick_taps
from .heads import LoadedHead
from .rows import Cost

DRAFTED = (2, 4, 8, 16, 32, 64)
CONTEXTS = (128, 512, 1024, 2048)
TARGET = ""  # in the place of a head's label

Pass = Callable[[], None]
Draft = Callable[[], Tensor]  # gives the candidates, [N, 16] int64
Case = tuple[str, int]  # a head's label or TARGET, and how many tokens are drafted
Timer = Callable[[dict[Case, Pass]], Mapping[Case, float]]
"""Seconds of a call of each, taken in turns."""


def measure(generator: TransformersGenerator, heads: list[LoadedHead], time: Timer) -> list[Cost]:
    """Heads and target behind each context that the target has positions for; `generator` has the heads' taps.

    A head is timed as far as its own positions allow.
    """
    limit = generator.model.config.max_position_embeddings
    contexts = [n for n in CONTEXTS if n + min(DRAFTED) < limit]
    if not contexts:
        return []
    longest = max(contexts)
    bench = Bench(generator, heads, length=min(limit, longest + max(DRAFTED) + 1), cached=longest + 1)
    return [row for context in contexts for row in bench.rows(context, time)]


class Bench:
    """One random text, whose beginnings are the contexts: the target has read them, the heads have its features."""

    def __init__(
        self, generator: TransformersGenerator, heads: list[LoadedHead], length: int, cached: int
    ) -> None:
        self.model, self.heads, self.length = generator.model, heads, length
        self.device = self.model.device
        vocabulary = self.model.config.vocab_size
        ids = torch.randint(vocabulary, (1, length), generator=torch.Generator().manual_seed(0))
        self.ids = ids.to(self.device)
        self.cache = SlabCache(self.model.config, 1, length, generator.dtype, self.device)
        self.embedding = self.model.get_input_embeddings().weight
        self.lm_head = self.model.get_output_embeddings().weight
        with torch.no_grad():
            self._read(0, cached)
        layers, taps = generator.tapped.layer_ids, generator.tapped.taps()
        self.taps = {head.label: pick_taps(taps, layers, head.taps) for head in heads}

    @torch.no_grad()
    def rows(self, context: int, time: Timer) -> list[Cost]:
        passes = self.passes(context)
        seconds = time(passes)
        return [
            Cost(
                head=label,
                context=context,
                drafted=drafted,
                draft_seconds=seconds[label, drafted],
                target_seconds=seconds[TARGET, drafted],
            )
            for label, drafted in passes
            if label != TARGET
        ]

    def passes(self, context: int) -> dict[Case, Pass]:
        """What is timed behind so many tokens."""
        found: dict[Case, Pass] = {}
        for drafted in DRAFTED:
            if context + drafted >= self.length:
                continue
            found[TARGET, drafted] = self._finished(self._verify, context, context + drafted + 1)
            for head in self.heads:
                if context + drafted < head.model.config.max_position_embeddings:
                    found[head.label, drafted] = self._finished(self.drafting(head, context, drafted))
        return found

    def _finished(self, run: Callable[..., Any], *args: int) -> Pass:
        """`run`, and the wait until the device has done it."""

        def finished() -> None:
            run(*args)
            if self.device.type != "cpu":
                torch.get_device_module(self.device).synchronize()

        return finished

    def _read(self, start: int, end: int) -> Tensor:
        """Hidden states of tokens start..end-1 behind the cached ones."""
        self.cache.length = start
        positions = torch.arange(start, end, device=self.device)
        seen = torch.arange(end, device=self.device) <= positions[:, None]
        return decoder(self.model)(
            input_ids=self.ids[:, start:end],
            attention_mask=seen[None, None],
            position_ids=positions[None],
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state

    def _verify(self, start: int, end: int) -> None:
        self.model.get_output_embeddings()(self._read(start, end))

    def drafting(self, head: LoadedHead, context: int, drafted: int) -> Draft:
        """One draft of so many tokens behind so many."""
        if isinstance(head.model, AutoregressiveHead | SpecBlockHead):
            return self._levels(head, head.model, context, drafted)
        return self._block(head, head.model, context, drafted)

    def _block(self, head: LoadedHead, model: CausalParallelHead, context: int, drafted: int) -> Draft:
        positions = torch.arange(context + drafted + 1, device=self.device)[None]
        taps = self.taps[head.label][:, :context].to(model.fc.weight.dtype)
        kv = model.context_kv(taps, positions[:, :context])
        ids = torch.full((1, drafted + 1), model.config.mask_token_id, device=self.device)
        ids[:, 0] = self.ids[:, context]
        mask = block_mask(context, drafted + 1, model.config.causal, self.device)

        def run() -> Tensor:
            out = model.block_hidden(self.embedding[ids], positions[:, context:], kv, mask)
            return top_k_logprobs(out[0, 1:] @ self.lm_head.T, head.width)[1]

        def run_corrected() -> Tensor:
            residuals = model.block_residual(self.embedding[ids], positions[:, context:], kv, mask)
            make = expanders_of(model, model.drafting(residuals), self.embedding, self.lm_head)
            return _likeliest_path(make(head.width), ids[:, 0], drafted)

        return run if model.config.corrector is None else run_corrected

    def _levels(
        self, head: LoadedHead, model: AutoregressiveHead | SpecBlockHead, context: int, drafted: int
    ) -> Draft:
        anchors = torch.tensor([context], device=self.device)
        taps = self.taps[head.label][0, : context + 1]
        tokens = self.ids[0, : context + 1]
        begun: Expander
        if isinstance(model, SpecBlockHead):
            blocks = spec_blocks(model, self.embedding, self.lm_head, taps[:context], anchors, head.width)
            begun = SpecBlockExpander(blocks)
        else:
            begun = PathExpander(model, self.embedding, self.lm_head, tokens, taps, anchors, head.width)

        def run() -> Tensor:
            return _likeliest_path(copy(begun), tokens[context:], drafted)  # an expander remembers levels

        return run


def _likeliest_path(expander: Expander, anchor: Tensor, drafted: int) -> Tensor:
    """Candidates [drafted, W] behind the anchor [1], each row's first token leading to the next."""
    token, rows = anchor[None], []
    for depth in range(drafted):
        rows.append(expander(token, torch.zeros_like(token), depth).token_ids[0, 0])
        token = rows[-1][None, None, 0]
    return torch.stack(rows)
