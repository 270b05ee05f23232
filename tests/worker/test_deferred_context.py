"""Deferred context ends as immediate context does, whatever slots are given to whom in between."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from jetspec_sglang.deferred_context import MOST_TOKENS, DeferredContext, last_writes
from jetspec_sglang.drafters.contract import CommittedTokens
from jetspec_sglang.kv import SINK


class Pool:
    """A drafter whose context is a table of the last features written to each slot."""

    def __init__(self) -> None:
        self.rows: dict[int, float] = {}
        self.calls = 0

    def append_context(self, committed: CommittedTokens) -> None:
        taps, slots = committed.taps, committed.slots
        self.calls += 1
        real = slots[slots != SINK].tolist()
        assert len(real) == len(set(real))  # a scatter with duplicates has no defined winner
        for tap, slot in zip(taps[:, 0].tolist(), slots.tolist(), strict=True):
            if slot != SINK:
                self.rows[slot] = tap


def write(rng_slots: list[int], start: int):
    slots = torch.tensor(rng_slots)
    taps = torch.arange(start, start + len(rng_slots)).float()[:, None]
    unused = torch.zeros_like(slots)
    return CommittedTokens(taps, slots, unused, unused, unused)


rounds = st.lists(
    st.tuples(st.booleans(), st.lists(st.integers(0, 12), min_size=1, max_size=6, unique=True)), max_size=20
)


@given(rounds)
def test_the_last_write_stays(sequence):
    now, later = Pool(), Pool()
    deferred = DeferredContext(later)
    for number, (drafted, slots) in enumerate(sequence):
        entry = write(slots, 10 * number)
        now.append_context(entry)
        (deferred.append if drafted else deferred.defer)(entry)
    deferred.flush()
    assert later.rows == now.rows


def test_it_is_bounded():
    pool = Pool()
    deferred = DeferredContext(pool)
    for number in range(MOST_TOKENS):
        deferred.defer(write([1 + number % 7], number))
    assert pool.calls == 1
    assert pool.rows[1 + (MOST_TOKENS - 1) % 7] == MOST_TOKENS - 1


def test_only_the_last_of_each_slot_is_kept():
    assert last_writes(torch.tensor([4, 5, 4, 6, 5])).tolist() == [SINK, SINK, 4, 6, 5]
    assert last_writes(torch.tensor([9])).tolist() == [9]
