"""Tree attention on the CPU: the fast path. `tree_attention_reference` says what it computes.

A forward has `bs` requests; request `b` owns `rows[b]` consecutive query rows and `lengths[b]` keys, of
which the last `rows[b]` belong to those same rows (their K/V are already in the cache). Every row sees the
committed prefix, that is the other keys, and of the request's own rows those that the visibility allows:

* `CAUSAL`         rows up to and including itself: plain decoding, prefill, a chain to verify;
* `BIDIRECTIONAL`  all rows of the request: a block-diffusion drafter;
* a tree mask      `[bs, N, N]` bool, True where row i may see row j: a token tree to verify;
* wider masks      a request `[N, M]` bool over its last M >= N keys: a level of a tree that grows.

`AttentionPlan` holds everything that depends on the batch and not on the layer, so a layer costs a few
torch operations. Keys are read by slot id; a request whose slots are one run is read in place, as a view.
No slot other than a request's own is ever read: a free slot may hold NaN, and a mask cannot undo that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum

import torch
from torch.nn.functional import scaled_dot_product_attention


class Visibility(Enum):
    """Which of a request's own new rows a row sees."""

    CAUSAL = "causal"
    BIDIRECTIONAL = "bidirectional"


class AttentionPlan:
    """The batch's part of attention, shared by all layers of one forward.

    Args:
        slots: one integer tensor `[lengths[b]]` a request, its cache slots in position order.
        rows: number of query rows of each request.
        tree_mask: a mask `[rows[b], M]` bool for every request, over its last M keys, `rows[b] <= M`; one tensor
            `[bs, N, M]` or a list. None for `CAUSAL`.
    """

    def __init__(
        self,
        slots: Sequence[torch.Tensor],
        rows: Sequence[int],
        tree_mask: torch.Tensor | Sequence[torch.Tensor] | None = None,
    ) -> None:
        self.rows = list(rows)
        self.lengths = [slot.numel() for slot in slots]
        if len(self.rows) != len(self.lengths):
            raise ValueError(f"{len(self.rows)} row counts for {len(self.lengths)} requests.")
        if any(length < count for count, length in zip(self.rows, self.lengths, strict=True)):
            raise ValueError(f"Rows {self.rows} must be part of the keys, whose numbers are {self.lengths}.")
        if tree_mask is not None:
            _check_tree_mask(tree_mask, self.rows, self.lengths)
        self.tree_mask = tree_mask
        self.keys = [run_or_indices(slot) for slot in slots]
        self._masks: dict[tuple, list[torch.Tensor | None]] = {}

    def masks(self, visibility: Visibility, group: int, dtype: torch.dtype) -> list[torch.Tensor | None]:
        """Additive masks `[rows[b] * group, lengths[b]]`, one a request; None where a row sees every key."""
        key = (visibility, group, dtype)
        if key not in self._masks:
            self._masks[key] = [
                self._mask(request, visibility, group, dtype) for request in range(len(self.rows))
            ]
        return self._masks[key]

    def _mask(self, request: int, visibility: Visibility, group: int, dtype: torch.dtype):
        rows, length = self.rows[request], self.lengths[request]
        if visibility is Visibility.BIDIRECTIONAL:
            return None
        if self.tree_mask is not None:
            visible = self.tree_mask[request]
        elif rows == 1:
            return None
        else:
            visible = torch.ones(rows, rows, dtype=torch.bool).tril_()
        mask = torch.zeros(rows, length, dtype=dtype)
        mask[:, length - visible.shape[1] :].masked_fill_(~visible, -math.inf)
        return mask.repeat_interleave(group, dim=0)


def run_or_indices(slots: torch.Tensor) -> slice | torch.Tensor:
    """The slots as a slice if they are one ascending run (then a view reads them), else as int64 indices."""
    slots = slots.long()
    if slots.numel() == 0:
        return slice(0, 0)
    first = int(slots[0])
    if int(slots[-1]) - first + 1 == slots.numel() and bool((slots.diff() == 1).all()):
        return slice(first, first + slots.numel())
    return slots


def tree_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    plan: AttentionPlan,
    scale: float,
    visibility: Visibility = Visibility.CAUSAL,
) -> torch.Tensor:
    """Attend the rows of one forward.

    Args:
        query: `[tokens, q_heads, head_dim]`, the requests' rows one after another.
        key_cache: `[slots, kv_heads, head_dim]` of this layer; `q_heads` is a multiple of `kv_heads`.
        value_cache: `[slots, kv_heads, v_head_dim]`.
        visibility: with a tree mask in the plan, `CAUSAL` means that mask.

    Returns:
        `[tokens, q_heads * v_head_dim]` in the query's dtype.
    """
    group = query.shape[1] // key_cache.shape[1]
    masks = plan.masks(visibility, group, query.dtype)
    if len(plan.rows) == 1:
        return _attend(query, key_cache, value_cache, plan.keys[0], masks[0], scale)
    outputs, start = [], 0
    for rows, keys, mask in zip(plan.rows, plan.keys, masks, strict=True):
        outputs.append(_attend(query[start : start + rows], key_cache, value_cache, keys, mask, scale))
        start += rows
    return torch.cat(outputs)


def _attend(query, key_cache, value_cache, keys, mask, scale) -> torch.Tensor:
    """One request: `query [rows, q_heads, head_dim]` -> `[rows, q_heads * v_head_dim]`.

    The query heads that share a key head become rows of that head, so each key is read once and no head
    is repeated.
    """
    rows, q_heads, head_dim = query.shape
    kv_heads = key_cache.shape[1]
    group = q_heads // kv_heads
    if isinstance(keys, slice):
        key, value = key_cache[keys], value_cache[keys]
    else:
        key, value = key_cache.index_select(0, keys), value_cache.index_select(0, keys)
    if key.dtype != query.dtype:
        key, value = key.to(query.dtype), value.to(query.dtype)
    folded = (
        query.view(rows, kv_heads, group, head_dim).transpose(0, 1).reshape(1, kv_heads, rows * group, -1)
    )
    output = scaled_dot_product_attention(
        folded, key.transpose(0, 1)[None], value.transpose(0, 1)[None], attn_mask=mask, scale=scale
    )
    return output.view(kv_heads, rows, group, -1).transpose(0, 1).reshape(rows, -1)


def _check_tree_mask(
    tree_mask: torch.Tensor | Sequence[torch.Tensor], rows: list[int], lengths: list[int]
) -> None:
    if len(tree_mask) != len(rows):
        raise ValueError(f"{len(tree_mask)} tree masks for {len(rows)} requests.")
    for mask, count, length in zip(tree_mask, rows, lengths, strict=True):
        fits = mask.dim() == 2 and mask.shape[0] == count <= mask.shape[1] <= length
        if mask.dtype != torch.bool or not fits:
            raise ValueError(
                f"A tree mask is [N, M] bool a request, N <= M: got {tuple(mask.shape)} {mask.dtype} for {count} "
                f"rows and {length} keys."
            )
        if mask.shape[1] == length and not bool(mask.any(dim=-1).all()):
            raise ValueError("A row without a prefix must see some row: a softmax over nothing is undefined.")
