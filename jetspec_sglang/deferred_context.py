"""Committed tokens that the drafter has not read yet.

A round that drafts nothing needs nothing of the drafter, whose context is wanted only by the next draft. So
plain rounds leave their tokens here, and many of them are taken in by one call, which costs little more than
one round's would. Order is kept: a slot that was freed and given to another request in between ends with what
was written last, as it would have without waiting.
"""

import torch

from .drafters.contract import CommittedTokens, ServedDrafter
from .kv import SINK

MOST_TOKENS = 1024  # of features kept back: some MB


class DeferredContext:
    """Stands between the worker and `drafter.append_context`."""

    def __init__(self, drafter: ServedDrafter) -> None:
        self._drafter = drafter
        self._waiting: list[CommittedTokens] = []
        self._tokens = 0

    def append(self, committed: CommittedTokens) -> None:
        """Now, after all that waits."""
        self.flush()
        self._drafter.append_context(committed)

    def defer(self, committed: CommittedTokens) -> None:
        """Before the next draft. The tensors must not be written to any more."""
        self._waiting.append(committed)
        self._tokens += len(committed.slots)
        if self._tokens >= MOST_TOKENS:
            self.flush()

    def flush(self) -> None:
        """Let the drafter read what waits."""
        if not self._waiting:
            return
        committed = CommittedTokens(*(torch.cat(parts) for parts in zip(*self._waiting, strict=True)))
        self._waiting, self._tokens = [], 0
        self._drafter.append_context(committed._replace(slots=last_writes(committed.slots)))


def last_writes(slots: torch.Tensor) -> torch.Tensor:
    """`slots` [T] int64 with all but the last entry of each slot sent to the sink.

    Where one scatter writes a slot twice, it is undefined which of the two stays.
    """
    order = slots.argsort(stable=True)
    ordered = slots[order]
    is_last = torch.ones_like(slots, dtype=torch.bool)
    is_last[:-1] = ordered[1:] != ordered[:-1]
    return slots.where(torch.empty_like(is_last).scatter_(0, order, is_last), SINK)
