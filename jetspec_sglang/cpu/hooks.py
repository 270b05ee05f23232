"""Replacements of SGLang functions that would launch a Triton kernel: on the CPU there is none."""

from __future__ import annotations

import torch

ASSIGN_SLOTS = "sglang.srt.mem_cache.allocation.assign_req_to_token_pool_func"

_installed = False


def install() -> None:
    """Register the replacements with SGLang's hook registry, once, where our platform is the active one."""
    global _installed
    from sglang.srt.platforms import current_platform

    from jetspec_sglang.cpu.platform import JetSpecCpuPlatform

    if _installed or not isinstance(current_platform, JetSpecCpuPlatform):
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(ASSIGN_SLOTS, assign_req_to_token_pool, HookType.REPLACE)
    _installed = True


def assign_req_to_token_pool(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    batch_size: int,
) -> None:
    """Write each request's new slots into its row: `req_to_token[r, start:end] = next slots`.

    `req_pool_indices`, `start_offset`, `end_offset`: `[batch_size]` integers; `out_cache_loc`: the slots of
    all requests one after another, `sum(end - start)` of them; `req_to_token`: `[rows, width]` int32.
    """
    width = req_to_token.shape[1]
    starts, ends = start_offset[:batch_size].tolist(), end_offset[:batch_size].tolist()
    if max(ends, default=0) > width:
        # Slicing would silently cut the row; a Triton writer would go on into the next request's row.
        raise RuntimeError(f"A request needs {max(ends)} slots, but its row holds {width}.")
    taken = 0
    for row, start, end in zip(req_pool_indices.tolist(), starts, ends, strict=False):
        count = max(end - start, 0)
        if count:
            req_to_token[row, start:end] = out_cache_loc[taken : taken + count]
            taken += count
