"""Slot bookkeeping against a plain-Python model, on random trees' worth of slots and paths."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jetspec_sglang.kv import SINK, commit_moves, move_committed, reserved_slots


class Pool:
    """Stands in for SGLang's KV pool: one number a slot, gather-then-scatter."""

    def __init__(self, size: int) -> None:
        self.kv = torch.arange(size, dtype=torch.float64)

    def move_kv_cache(self, to, source) -> None:
        self.kv[to] = self.kv[source]


@st.composite
def rounds(draw):
    """(table, rows, committed lengths, window, paths): requests own disjoint random slots."""
    batch, window = draw(st.integers(1, 4)), draw(st.integers(1, 12))
    lens = draw(st.lists(st.integers(0, 9), min_size=batch, max_size=batch))
    width = 9 + window
    shuffled = draw(st.permutations(range(1, 1 + (batch + 1) * width)))
    table = torch.tensor(shuffled, dtype=torch.int32).view(batch + 1, width)
    rows = draw(st.permutations(range(batch + 1)))[:batch]
    paths = []
    for _ in range(batch):
        inner = draw(st.sets(st.integers(1, window - 1), max_size=6)) if window > 1 else set()
        paths.append([0, *sorted(inner)])  # parents come before children, so paths ascend
    return table, torch.tensor(rows), torch.tensor(lens), window, paths


@settings(max_examples=200, deadline=None)
@given(rounds())
def test_commit_brings_each_path_to_the_front_and_touches_nothing_else(case):
    table, rows, lens, window, paths = case
    length = max(map(len, paths)) + 1
    path = torch.tensor([p + [-1] * (length - len(p)) for p in paths])
    lengths = torch.tensor([len(p) for p in paths])
    slots = reserved_slots(table, rows, lens, window)
    for request, row in enumerate(rows.tolist()):
        assert slots[request].tolist() == table[row, lens[request] : lens[request] + window].tolist()

    pool = Pool(int(table.max()) + 1)
    before, table_before = pool.kv.clone(), table.clone()
    to, source = commit_moves(slots, path, lengths)
    move_committed(pool, to, source)

    expected = before.clone()
    for request, nodes in enumerate(paths):
        for column, node in enumerate(nodes):
            expected[slots[request, column]] = before[slots[request, node]]
    assert torch.equal(pool.kv, expected)
    assert torch.equal(table, table_before), "reserved slots are read, never rewritten"
    assert (to[path < 0] == SINK).all()
    assert (source[path < 0] == SINK).all()
