"""Data for training: the target answers prompts greedily, and what it saw is kept beside the answer.

One pass gives everything `fit` needs: the tokens, the taps (outputs of the tapped decoder layers,
which become the drafter's context features) and the target's top-k distribution at each step
(the teacher). Many answers are generated at once, since a token then costs several times less.

Shard format (`safetensors`, metadata key `jetspec` holds a JSON description):

    tokens        [M] int32       all sequences, one after the other
    offsets       [S+1] int64     sequence s is tokens[offsets[s]:offsets[s+1]]
    prompt_lens   [S] int32
    taps          [M, K*H] bf16   layer outputs, concatenated in the order of target_layer_ids
    topk_ids      [M, 16] int32   the target's likeliest tokens after position t, for t >= prompt_len - 1
    topk_logprobs [M, 16] f16     their full-vocabulary log-probabilities (temperature 1)
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import AttentionInterface, AutoModelForCausalLM, Cache

from jetspec_sglang.kernels.top_k import top_k_logprobs

TOPK = 16


class SlabCache(Cache):
    """KV of a batch in one preallocated buffer a layer, written in place and read as a slice.

    Transformers' own caches either copy all of it each step or attend over the whole buffer.
    """

    def __init__(self, config, batch: int, capacity: int, dtype: torch.dtype) -> None:
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (2, batch, config.num_key_value_heads, capacity, head_dim)
        self.layers = []  # the base class's own storage stays unused
        self.slabs = [torch.zeros(shape, dtype=dtype) for _ in range(config.num_hidden_layers)]
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


@dataclass
class Answer:
    """One sequence: prompt and response with the target's view of them (fields as in the shard format)."""

    tokens: torch.Tensor
    prompt_len: int
    taps: torch.Tensor
    topk_ids: torch.Tensor
    topk_logprobs: torch.Tensor


class Generator:
    """The target, prepared to answer many prompts at once on the CPU in bf16."""

    def __init__(self, target: str | Path, target_layer_ids: list[int]) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(
            target, dtype=torch.bfloat16, attn_implementation="jetspec_slab"
        ).eval()
        self.target_layer_ids = list(target_layer_ids)
        self._tapped: dict[int, torch.Tensor] = {}
        for layer_id in self.target_layer_ids:
            self.model.model.layers[layer_id].register_forward_hook(self._tap(layer_id))

    def _tap(self, layer_id: int) -> Callable:
        def hook(module, args, output):
            self._tapped[layer_id] = output[0] if isinstance(output, tuple) else output

        return hook

    def _forward(self, ids, mask, positions, cache) -> tuple[torch.Tensor, torch.Tensor]:
        """→ (taps [B, n, K*H], logits after the last position [B, V])."""
        hidden = self.model.model(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
        ).last_hidden_state
        cache.length += ids.shape[1]
        taps = torch.cat([self._tapped[i] for i in self.target_layer_ids], dim=-1)
        return taps, self.model.lm_head(hidden[:, -1])

    @torch.inference_mode()
    def answer(
        self,
        prompts: list[list[int]],
        max_new_tokens: int,
        stop_ids: set[int],
        choose: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> Iterator[Answer]:
        """Answers in the order in which they end; greedily, or by `choose` (logits [B, V] → tokens [B])."""
        width = max(map(len, prompts))
        rows = len(prompts)
        ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
        pad = torch.tensor([width - len(p) for p in prompts])
        capacity = width + max_new_tokens
        taps = torch.empty(
            rows, capacity, len(self.target_layer_ids) * self.model.config.hidden_size, dtype=torch.bfloat16
        )
        tokens = torch.zeros(rows, capacity, dtype=torch.int32)
        tokens[:, :width] = ids
        top_ids = torch.zeros(rows, capacity, TOPK, dtype=torch.int32)
        top_logprobs = torch.zeros(rows, capacity, TOPK, dtype=torch.float16)
        cache = SlabCache(self.model.config, rows, capacity, torch.bfloat16)

        visible = torch.arange(capacity) >= pad[:, None]
        causal = torch.ones(width, width, dtype=torch.bool).tril()
        mask = causal & visible[:, None, :width]
        mask |= torch.eye(width, dtype=torch.bool)  # a padding row sees itself: no NaN
        positions = (torch.arange(width) - pad[:, None]).clamp(min=0)
        step_taps, logits = self._forward(ids, mask[:, None], positions, cache)
        taps[:, :width] = step_taps
        alive = torch.arange(rows)  # rows of the buffers that the batch's rows stand for
        done = torch.zeros(rows, dtype=torch.bool)  # of the batch's rows: answers that have ended
        stops = torch.tensor(sorted(stop_ids))
        for at in range(width, capacity):
            logprobs, index = top_k_logprobs(logits, TOPK)
            top_ids[alive, at - 1] = index.int()
            top_logprobs[alive, at - 1] = logprobs.half()
            chosen = index[:, 0] if choose is None else choose(logits)
            tokens[alive, at] = chosen.int()
            ended = ~done & (torch.isin(chosen, stops) | (at + 1 == capacity))
            for row in alive[ended].tolist():
                span = slice(int(pad[row]), at + 1)
                taps[row, at] = 0  # the last token is never context
                yield Answer(
                    tokens[row, span].clone(),
                    width - int(pad[row]),
                    taps[row, span].clone(),
                    top_ids[row, span].clone(),
                    top_logprobs[row, span].clone(),
                )
            done |= ended
            if done.all():
                return
            if done.float().mean() > 0.15:  # dropping rows copies the whole cache, so not one by one
                kept = (~done).nonzero()[:, 0]
                cache.keep(kept)
                alive, chosen, done = alive[kept], chosen[kept], done[kept]
            bias = torch.zeros(len(alive), 1, 1, at + 1, dtype=torch.bfloat16)
            bias.masked_fill_(~visible[alive, None, None, : at + 1], float("-inf"))
            step_taps, logits = self._forward(chosen[:, None], bias, (at - pad[alive])[:, None], cache)
            taps[alive, at] = step_taps[:, 0]


def write_shard(path: Path, answers: list[Answer], description: dict) -> None:
    """Write `answers` as one shard, atomically."""
    lengths = torch.tensor([len(a.tokens) for a in answers])
    tensors = {
        "tokens": torch.cat([a.tokens for a in answers]),
        "offsets": F.pad(lengths.cumsum(0), (1, 0)),
        "prompt_lens": torch.tensor([a.prompt_len for a in answers], dtype=torch.int32),
        "taps": torch.cat([a.taps for a in answers]),
        "topk_ids": torch.cat([a.topk_ids for a in answers]),
        "topk_logprobs": torch.cat([a.topk_logprobs for a in answers]),
    }
    scratch = path.with_suffix(".tmp")
    save_file(tensors, scratch, metadata={"jetspec": json.dumps(description)})
    scratch.rename(path)
