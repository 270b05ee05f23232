"""Slot writes and moves in torch: overlapping moves read every source before writing any target."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jetspec_sglang.cpu.hooks import assign_req_to_token_pool
from jetspec_sglang.cpu.kv_pool import CpuKVPool


def pool(slots=32, layers=2):
    made = CpuKVPool(
        size=slots, page_size=1, dtype=torch.float32, head_num=2, head_dim=4, layer_num=layers, device="cpu",
        enable_memory_saver=False, enable_kv_cache_copy=True,
    )  # fmt: skip
    for buffer in (*made.k_buffer, *made.v_buffer):
        buffer.copy_(torch.randn_like(buffer))
    return made


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 20).flatmap(lambda n: st.tuples(*[st.permutations(range(33)).map(lambda p: p[:n])] * 2))
)
def test_move_is_gather_then_scatter(pair):
    target, source = (torch.tensor(part) for part in pair)
    kv = pool()
    before = [buffer.clone() for buffer in (*kv.k_buffer, *kv.v_buffer)]
    kv.move_kv_cache(target, source)
    for old, new in zip(before, (*kv.k_buffer, *kv.v_buffer), strict=True):
        expected = old.clone()
        expected[target] = old[source]
        assert torch.equal(new, expected)


def test_moving_nothing_changes_nothing():
    kv = pool()
    before = kv.k_buffer[0].clone()
    kv.move_kv_cache(torch.tensor([], dtype=torch.int64), torch.tensor([], dtype=torch.int64))
    assert torch.equal(kv.k_buffer[0], before)


def test_store_writes_exactly_its_slots():
    kv = pool()
    before, k, v = kv.k_buffer[1].clone(), torch.randn(3, 2, 4), torch.randn(3, 2, 4)
    kv._store_kv_layer(1, torch.tensor([9, 2, 30], dtype=torch.int32), k, v)
    assert torch.equal(kv.k_buffer[1][[9, 2, 30]], k)
    assert torch.equal(kv.v_buffer[1][[9, 2, 30]], v)
    others = [slot for slot in range(33) if slot not in (9, 2, 30)]
    assert torch.equal(kv.k_buffer[1][others], before[others])


def test_slots_go_to_their_requests_rows():
    rows = torch.full((4, 10), -1, dtype=torch.int32)
    assign_req_to_token_pool(
        torch.tensor([2, 0]), rows, torch.tensor([3, 0]), torch.tensor([5, 4]), torch.arange(100, 106), 2
    )
    assert rows[2].tolist() == [-1, -1, -1, 100, 101, -1, -1, -1, -1, -1]
    assert rows[0].tolist() == [102, 103, 104, 105, -1, -1, -1, -1, -1, -1]
    assert (rows[[1, 3]] == -1).all()


def test_a_row_never_overflows_silently():
    with pytest.raises(RuntimeError, match="needs 11 slots"):
        assign_req_to_token_pool(
            torch.tensor([0]), torch.zeros(2, 10, dtype=torch.int32), torch.tensor([9]), torch.tensor([11]),
            torch.arange(2), 1,
        )  # fmt: skip
