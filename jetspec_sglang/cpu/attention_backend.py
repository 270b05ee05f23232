"""SGLang attention backend `jetspec_cpu`: plain decoding, (chunked) prefill and tree verification."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc

from jetspec_sglang.cpu.defaults import ATTENTION_BACKEND
from jetspec_sglang.kernels.tree_attention import AttentionPlan, Visibility, tree_attention

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner


def register() -> None:
    """Make the backend known to SGLang's registry; called in every process that builds a model runner."""
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS, register_attention_backend

    if ATTENTION_BACKEND not in ATTENTION_BACKENDS:
        register_attention_backend(ATTENTION_BACKEND)(CpuAttentionBackend)


class CpuAttentionBackend(AttentionBackend):
    """Serves a target or a draft model runner; the plan is rebuilt once a forward, never once a layer."""

    def __init__(self, model_runner: ModelRunner) -> None:
        super().__init__()
        self.forward_metadata: AttentionPlan | None = None
        self.req_to_token_pool = model_runner.req_to_token_pool
        self.token_to_kv_pool = model_runner.token_to_kv_pool
        refuse_model(model_runner)

    def support_triton(self) -> bool:
        return False

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        return 1

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        self.forward_metadata = plan_forward(forward_batch, self.req_to_token_pool.req_to_token)

    def forward_decode(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        return self._forward(q, k, v, layer, forward_batch, save_kv_cache, kwargs)

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        return self._forward(q, k, v, layer, forward_batch, save_kv_cache, kwargs)

    def _forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool,
        extra: dict,
    ) -> torch.Tensor:
        """`q [tokens, q_heads * d]`, `k, v [tokens, kv_heads, d]` -> `[tokens, q_heads * v_head_dim]`."""
        visibility = layer_visibility(layer, extra)
        if save_kv_cache and k is not None:
            self.token_to_kv_pool.set_kv_buffer(layer, KVWriteLoc(forward_batch.out_cache_loc), k, v)
        return tree_attention(
            q.view(-1, layer.tp_q_head_num, layer.qk_head_dim),
            self.token_to_kv_pool.get_key_buffer(layer.layer_id),
            self.token_to_kv_pool.get_value_buffer(layer.layer_id),
            self.forward_metadata,
            layer.scaling,
            visibility,
        )


def plan_forward(forward_batch: ForwardBatch, req_to_token: torch.Tensor) -> AttentionPlan:
    """Which rows and slots each request of the batch has. `req_to_token`: `[requests, width]` int32."""
    mode = forward_batch.forward_mode
    lengths = seq_lens_of(forward_batch)
    tree_mask = None
    if mode.is_target_verify():
        # seq_lens counts the committed prefix; the rows to verify come on top of it.
        count = forward_batch.spec_info.draft_token_num
        tree_mask = forward_batch.spec_info.tree_mask
        rows = [count] * len(lengths)
        lengths = [length + count for length in lengths]
    elif mode.is_decode_or_idle():
        rows = [1] * len(lengths)
    else:
        rows = forward_batch.extend_seq_lens_cpu
        if rows is None:
            rows = forward_batch.extend_seq_lens.tolist()
    slots = [
        req_to_token[request, :length]
        for request, length in zip(forward_batch.req_pool_indices.tolist(), lengths, strict=True)
    ]
    return AttentionPlan(slots, rows, tree_mask)


def seq_lens_of(forward_batch: ForwardBatch) -> list[int]:
    """Lengths as Python integers; the host copy where SGLang keeps one, which is the same memory here."""
    lengths = forward_batch.seq_lens_cpu
    return (forward_batch.seq_lens if lengths is None else lengths).tolist()


def layer_visibility(layer: RadixAttention, extra: dict) -> Visibility:
    """What this layer's rows see of each other; refuses what the backend cannot compute."""
    if layer.is_cross_attention:
        raise NotImplementedError(f"{ATTENTION_BACKEND} does not compute cross attention.")
    if layer.logit_cap:
        raise NotImplementedError(f"{ATTENTION_BACKEND} does not compute capped logits ({layer.logit_cap}).")
    if layer.sliding_window_size is not None and layer.sliding_window_size > -1:
        raise NotImplementedError(
            f"{ATTENTION_BACKEND} does not compute sliding windows ({layer.sliding_window_size} tokens)."
        )
    if extra.get("sinks") is not None:
        raise NotImplementedError(f"{ATTENTION_BACKEND} does not compute attention sinks.")
    bidirectional = layer.attn_type in (AttentionType.ENCODER_ONLY, AttentionType.DECODER_BIDIRECTIONAL)
    return Visibility.BIDIRECTIONAL if bidirectional else Visibility.CAUSAL


def refuse_model(model_runner: ModelRunner) -> None:
    """Refuse at start the models that could only fail at their first forward."""
    if model_runner.use_mla_backend:
        raise NotImplementedError(f"{ATTENTION_BACKEND} does not serve MLA models.")
