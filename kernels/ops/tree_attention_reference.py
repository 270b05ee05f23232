"""Tree attention, row by row: the definition that the fast path is tested against."""

from __future__ import annotations

import torch


def tree_attention_reference(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: list[torch.Tensor],
    rows: list[int],
    visible: list[torch.Tensor],
    scale: float,
) -> torch.Tensor:
    """Attend each query row to the committed prefix and to the new rows that `visible` allows.

    Args:
        query: `[tokens, q_heads, head_dim]`, the requests' rows one after another.
        key_cache: `[slots, kv_heads, head_dim]`.
        value_cache: `[slots, kv_heads, v_head_dim]`.
        slots: per request the slots of its keys in position order; the last `rows[b]` are its own rows.
        rows: query rows of each request.
        visible: per request `[rows[b], rows[b]]` bool, True where row i sees row j.

    Returns:
        `[tokens, q_heads * v_head_dim]` in the query's dtype, computed in fp32.
    """
    group = query.shape[1] // key_cache.shape[1]
    outputs, token = [], 0
    for request_slots, count, sees in zip(slots, rows, visible, strict=True):
        prefix, own = (
            request_slots[: request_slots.numel() - count],
            request_slots[request_slots.numel() - count :],
        )
        for row in range(count):
            seen = torch.cat([prefix, own[sees[row]]]).long()
            # Each key head serves `group` consecutive query heads.
            key = key_cache[seen].float().repeat_interleave(group, dim=1)
            value = value_cache[seen].float().repeat_interleave(group, dim=1)
            score = torch.einsum("hd,khd->hk", query[token].float(), key) * scale
            outputs.append(torch.einsum("hk,khd->hd", score.softmax(dim=-1), value).flatten())
            token += 1
    return torch.stack(outputs).to(query.dtype)
