"""KV bookkeeping of a round: which slots a tree is verified in, and which of them become committed."""

import torch

SINK = 0  # SGLang's padding slot: written by padding rows, read by nobody


def reserved_slots(
    req_to_token: torch.Tensor, rows: torch.Tensor, lens: torch.Tensor, count: int
) -> torch.Tensor:
    """Slots `[B, count]` int64 behind each request's committed prefix. They are reserved: read, never rewritten.

    req_to_token: [R, W] int32 slot table; rows: [B] request rows in it; lens: [B] committed lengths.
    """
    columns = lens[:, None] + torch.arange(count, device=lens.device)
    return req_to_token[rows[:, None], columns].to(torch.int64)


def commit_moves(
    slots: torch.Tensor, path: torch.Tensor, lengths: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(to, from) slots `[B, L]` that bring an accepted path to the front of the verify window.

    slots: [B, N] the window; path: [B, L] accepted nodes, -1 behind the end; lengths: [B].
    Column j of a path goes to slot j of the window. Columns behind the end go from the sink to the sink, so the
    shapes don't depend on what was accepted and an accelerator need not be asked.
    """
    columns = torch.arange(path.shape[1], device=path.device)
    live = columns < lengths[:, None]
    front = slots[:, columns.clamp(max=slots.shape[1] - 1)]
    source = slots.gather(1, path.clamp(min=0))
    return front.where(live, SINK), source.where(live, SINK)


def move_committed(kv_pool, to: torch.Tensor, source: torch.Tensor) -> None:
    """Move the target's KV of accepted nodes. All sources are read before any slot is written.

    A path's j-th node never stands before slot j, but another request's or a later node's slot may be both a
    source and a destination. On the CPU rows that already lie right are left out, which is most of them.
    """
    to, source = to.flatten(), source.flatten()
    if to.device.type == "cpu":
        moved = to != source
        to, source = to[moved], source[moved]
        if to.numel() == 0:
            return
    kv_pool.move_kv_cache(to, source)
