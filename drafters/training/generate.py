"""Answers of the target without an engine, and in the same pass what it saw: the tokens, taps and top-16 distributions.

A token of one answer costs a read of all weights, so many answers are generated at once, and the features come
for nothing. SGLang's engine would give the tokens alone, and features would take another forward over them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, Cache

from jetspec_sglang.kernels.top_k import top_k_logprobs

from .shards import TOPK, Sequence, Tokens, TopK
from .target import Tapped, decoder, load_model


class Generator(Protocol):
    """What answers prompts for the data stage."""

    gives_features: bool  # whether its answers are sequences with features

    def answer(
        self, prompts: list[list[int]], max_new_tokens: int, stop_ids: set[int], sample: bool = False
    ) -> Iterator[Tokens]:
        """Answers, in any order: greedy, or sampled at temperature 1. A stop token ends one and is part of it."""


class SlabCache(Cache):
    """KV of a batch in one preallocated buffer a layer, written in place and read as a slice.

    Transformers' own caches either copy all of it each step or attend over the whole buffer.
    """

    def __init__(
        self, config, batch: int, capacity: int, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (2, batch, config.num_key_value_heads, capacity, head_dim)
        self.layers = []  # the base class's own storage stays unused
        self.slabs = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_hidden_layers)]
        self.length = 0

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        slab, end = self.slabs[layer_idx], self.length + key_states.shape[2]
        slab[0, :, :, self.length : end] = key_states
        slab[1, :, :, self.length : end] = value_states
        return slab[0, :, :, :end], slab[1, :, :, :end]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length

    def keep(self, rows: torch.Tensor) -> None:
        """Drop all requests but `rows` [B'] (indices)."""
        self.slabs = [slab[:, rows] for slab in self.slabs]


def _slab_attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    batch, heads, length, dim = query.shape
    if length > 1:
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=attention_mask, scale=scaling, enable_gqa=True
        )
        return out.transpose(1, 2), None
    # One query a request: the query heads of a group become the rows of one query, so keys are read once.
    grouped = query.view(batch, key.shape[1], -1, dim)
    out = F.scaled_dot_product_attention(grouped, key, value, attn_mask=attention_mask, scale=scaling)
    return out.reshape(batch, 1, heads, dim), None


AttentionInterface.register("jetspec_slab", _slab_attention)


class TransformersGenerator:
    """The target, prepared to answer many prompts at once. Answers are on the CPU, whatever device it is on."""

    gives_features = True

    def __init__(
        self,
        target: str | Path,
        target_layer_ids: tuple[int, ...],
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cpu",
    ) -> None:
        self.model = load_model(target, dtype, attn_implementation="jetspec_slab").to(device)
        self.tapped = Tapped(self.model, target_layer_ids)
        self.dtype, self.device = dtype, device

    def _forward(self, ids, mask, positions, cache) -> tuple[torch.Tensor, torch.Tensor]:
        """→ (taps [B, n, K*H], logits after the last position [B, V])."""
        hidden = decoder(self.model)(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
        ).last_hidden_state
        cache.length += ids.shape[1]
        return self.tapped.taps(), self.model.get_output_embeddings()(hidden[:, -1])

    @torch.inference_mode()
    def answer(
        self, prompts: list[list[int]], max_new_tokens: int, stop_ids: set[int], sample: bool = False
    ) -> Iterator[Sequence]:
        """Answers in the order in which they end, with their features."""
        choose = _sampled if sample else _greedy
        width = max(map(len, prompts))
        rows, device = len(prompts), self.device
        ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts], device=device)
        pad = torch.tensor([width - len(p) for p in prompts], device=device)
        capacity = width + max_new_tokens
        tap_width = len(self.tapped.layer_ids) * self.model.config.hidden_size
        taps = torch.empty(rows, capacity, tap_width, dtype=torch.bfloat16, device=device)
        tokens = torch.zeros(rows, capacity, dtype=torch.int64, device=device)
        tokens[:, :width] = ids
        top_ids = torch.zeros(rows, capacity, TOPK, dtype=torch.int32, device=device)
        top_logprobs = torch.zeros(rows, capacity, TOPK, dtype=torch.float16, device=device)
        cache = SlabCache(self.model.config, rows, capacity, self.dtype, device)

        visible = torch.arange(capacity, device=device) >= pad[:, None]
        causal = torch.ones(width, width, dtype=torch.bool, device=device).tril()
        mask = causal & visible[:, None, :width]
        mask |= torch.eye(width, dtype=torch.bool, device=device)  # a padding row sees itself: no NaN
        positions = (torch.arange(width, device=device) - pad[:, None]).clamp(min=0)
        step_taps, logits = self._forward(ids, mask[:, None], positions, cache)
        taps[:, :width] = step_taps
        alive = torch.arange(rows, device=device)  # rows of the buffers that the batch's rows stand for
        done = torch.zeros(
            rows, dtype=torch.bool, device=device
        )  # of the batch's rows: answers that have ended
        stops = torch.tensor(sorted(stop_ids), device=device)
        for at in range(width, capacity):
            logprobs, index = top_k_logprobs(logits, TOPK)
            top_ids[alive, at - 1] = index.int()
            top_logprobs[alive, at - 1] = logprobs.half()
            chosen = choose(logits, index)
            tokens[alive, at] = chosen
            ended = ~done & (torch.isin(chosen, stops) | (at + 1 == capacity))
            for row in alive[ended].tolist():
                span = slice(int(pad[row]), at + 1)
                taps[row, at] = 0  # the last token is never context
                yield Sequence(
                    tokens[row, span].clone().cpu(),
                    width - int(pad[row]),
                    taps[row, span].clone().cpu(),
                    TopK(top_ids[row, span].clone().cpu(), top_logprobs[row, span].clone().cpu()),
                )
            done |= ended
            if done.all():
                return
            if done.float().mean() > 0.15:  # dropping rows copies the whole cache, so not one by one
                kept = (~done).nonzero()[:, 0]
                cache.keep(kept)
                alive, chosen, done = alive[kept], chosen[kept], done[kept]
            bias = torch.zeros(len(alive), 1, 1, at + 1, dtype=self.dtype, device=device)
            bias.masked_fill_(~visible[alive, None, None, : at + 1], float("-inf"))
            step_taps, logits = self._forward(chosen[:, None], bias, (at - pad[alive])[:, None], cache)
            taps[alive, at] = step_taps[:, 0].bfloat16()


def _greedy(logits: torch.Tensor, ranked: torch.Tensor) -> torch.Tensor:
    return ranked[:, 0]


def _sampled(logits: torch.Tensor, ranked: torch.Tensor) -> torch.Tensor:
    return torch.multinomial(logits.float().softmax(-1), 1)[:, 0]
