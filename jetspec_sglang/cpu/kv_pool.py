"""KV pool of the CPU platform: SGLang's own, with slot moves in torch instead of Triton."""

from __future__ import annotations

import torch
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool


class CpuKVPool(MHATokenToKVPool):
    """Multi-head KV pool, `k_buffer[layer]` and `v_buffer[layer]`: `[slots, kv_heads, head_dim]`."""

    def _init_kv_copy_and_warmup(self) -> None:
        # The base class sizes and warms up a Triton copy kernel here.
        self._kv_copy_config = None

    def _store_kv_layer(
        self, layer_idx: int, loc: torch.Tensor, cache_k: torch.Tensor, cache_v: torch.Tensor
    ) -> None:
        """Write `cache_k`, `cache_v` `[tokens, kv_heads, head_dim]` to the slots `loc [tokens]`."""
        loc = loc.long()
        self.k_buffer[layer_idx].index_copy_(0, loc, cache_k)
        self.v_buffer[layer_idx].index_copy_(0, loc, cache_v)

    def _move_kv_cache_impl(self, tgt_loc: torch.Tensor, src_loc: torch.Tensor) -> None:
        """Copy slot `src_loc[i]` to slot `tgt_loc[i]` in every layer; both `[n]` integers.

        Sources are all read before any target is written, so the two sets may overlap.
        """
        if tgt_loc.numel() == 0:
            return
        source, target = src_loc.reshape(-1).long(), tgt_loc.reshape(-1).long()
        for buffer in self._slot_move_pointer_buffers():
            buffer.index_copy_(0, target, buffer.index_select(0, source))
