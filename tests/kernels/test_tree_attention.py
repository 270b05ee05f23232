"""The fast path of tree attention computes what the row-by-row reference defines, and reads nothing else."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jetspec_sglang.kernels.tree_attention import AttentionPlan, Visibility, run_or_indices, tree_attention
from jetspec_sglang.kernels.tree_attention_reference import tree_attention_reference

SLOTS = 160
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2}


@st.composite
def forwards(draw):
    """A forward: head counts, dtype, per-request rows and slots, and optionally a tree mask."""
    kv_heads = draw(st.sampled_from([1, 2, 3]))
    heads = (kv_heads * draw(st.sampled_from([1, 2, 3])), kv_heads)
    bs = draw(st.integers(1, 4))
    kind = draw(st.sampled_from(["decode", "extend", "verify", "verify_causal", "block"]))
    if kind == "extend":
        rows = [draw(st.integers(1, 12)) for _ in range(bs)]
        prefixes = [draw(st.integers(0, 20)) for _ in range(bs)]
    else:
        count = 1 if kind == "decode" else draw(st.integers(1, 8))
        rows = [count] * bs
        prefixes = [draw(st.integers(1, 20)) for _ in range(bs)]
    return {
        "heads": heads,
        "dtype": draw(st.sampled_from([torch.float32, torch.bfloat16])),
        "kind": kind,
        "rows": rows,
        "prefixes": prefixes,
        "scattered": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**16)),
    }


def build(case):
    """Tensors of a case. Every slot that belongs to no request holds NaN."""
    gen = torch.Generator().manual_seed(case["seed"])
    q_heads, kv_heads = case["heads"]
    lengths = [p + r for p, r in zip(case["prefixes"], case["rows"], strict=True)]
    order = torch.randperm(SLOTS, generator=gen) if case["scattered"] else torch.arange(3, SLOTS)
    slots = list(order[: sum(lengths)].to(torch.int32).split(lengths))
    key = torch.full((SLOTS, kv_heads, 16), float("nan"), dtype=case["dtype"])
    value = torch.full((SLOTS, kv_heads, 16), float("nan"), dtype=case["dtype"])
    used = torch.cat(slots).long()
    key[used] = torch.randn(used.numel(), kv_heads, 16, generator=gen).to(case["dtype"])
    value[used] = torch.randn(used.numel(), kv_heads, 16, generator=gen).to(case["dtype"])
    query = torch.randn(sum(case["rows"]), q_heads, 16, generator=gen).to(case["dtype"])
    mask = None
    if case["kind"] == "verify":
        count = case["rows"][0]
        mask = torch.rand(len(slots), count, count, generator=gen) < 0.4
    return query, key, value, slots, mask


def visible_rows(case, mask):
    if mask is not None:
        return list(mask)
    full = [torch.ones(count, count, dtype=torch.bool) for count in case["rows"]]
    return full if case["kind"] == "block" else [block.tril() for block in full]


@settings(max_examples=120, deadline=None)
@given(forwards())
def test_fast_path_equals_reference(case):
    query, key, value, slots, mask = build(case)
    plan = AttentionPlan(slots, case["rows"], mask)
    visibility = Visibility.BIDIRECTIONAL if case["kind"] == "block" else Visibility.CAUSAL
    expected = tree_attention_reference(
        query, key, value, slots, case["rows"], visible_rows(case, mask), scale=0.3
    )
    for _ in range(2):  # the second layer takes its masks from the plan
        got = tree_attention(query, key, value, plan, 0.3, visibility)
        assert got.dtype == query.dtype
        assert not got.isnan().any()
        torch.testing.assert_close(
            got.float(), expected.float(), atol=TOLERANCE[case["dtype"]], rtol=TOLERANCE[case["dtype"]]
        )


def test_one_plan_serves_causal_and_bidirectional_layers():
    case = {
        "heads": (4, 2), "dtype": torch.float32, "kind": "block", "rows": [5, 5], "prefixes": [3, 9],
        "scattered": True, "seed": 1,
    }  # fmt: skip
    query, key, value, slots, _ = build(case)
    plan = AttentionPlan(slots, case["rows"])
    for kind, visibility in (("block", Visibility.BIDIRECTIONAL), ("extend", Visibility.CAUSAL)):
        expected = tree_attention_reference(
            query, key, value, slots, case["rows"], visible_rows({**case, "kind": kind}, None), 0.25
        )
        torch.testing.assert_close(tree_attention(query, key, value, plan, 0.25, visibility), expected)


def test_a_chain_mask_is_the_causal_block():
    case = {
        "heads": (3, 1), "dtype": torch.float32, "kind": "verify_causal", "rows": [6, 6], "prefixes": [4, 2],
        "scattered": False, "seed": 2,
    }  # fmt: skip
    query, key, value, slots, _ = build(case)
    chain = torch.ones(6, 6, dtype=torch.bool).tril().expand(2, 6, 6)
    with_mask = tree_attention(query, key, value, AttentionPlan(slots, case["rows"], chain), 0.25)
    without = tree_attention(query, key, value, AttentionPlan(slots, case["rows"]), 0.25)
    torch.testing.assert_close(with_mask, without)


def test_a_mask_may_reach_into_the_prefix():
    """Equal to a longer forward under the whole mask, of which only the last rows are asked for."""
    case = {
        "heads": (4, 2), "dtype": torch.float32, "kind": "verify_causal", "rows": [7, 7], "prefixes": [4, 2],
        "scattered": True, "seed": 3,
    }  # fmt: skip
    query, key, value, slots, _ = build(case)
    mask = torch.rand(2, 7, 7, generator=torch.Generator().manual_seed(0)) < 0.5
    whole = tree_attention(query, key, value, AttentionPlan(slots, [7, 7], mask), 0.25).view(2, 7, -1)
    last = query.view(2, 7, 4, 16)[:, 4:].flatten(0, 1)
    wide = AttentionPlan(slots, [3, 3], mask[:, 4:])
    torch.testing.assert_close(tree_attention(last, key, value, wide, 0.25).view(2, 3, -1), whole[:, 4:])
    # The prefix in the mask, too, as a list of masks that differ in length.
    full = [
        torch.cat((torch.ones(3, n, dtype=torch.bool), m), 1)
        for n, m in zip([4, 2], mask[:, 4:], strict=True)
    ]
    listed = AttentionPlan(slots, [3, 3], full)
    torch.testing.assert_close(tree_attention(last, key, value, listed, 0.25).view(2, 3, -1), whole[:, 4:])


def test_query_may_be_a_strided_part_of_a_fused_projection():
    fused = torch.randn(5, 4 * 16 + 7)
    query = fused[:, : 4 * 16].view(5, 4, 16)
    key, value = torch.randn(20, 2, 16), torch.randn(20, 2, 16)
    slots = [torch.arange(2, 12)]
    plan = AttentionPlan(slots, [5])
    torch.testing.assert_close(
        tree_attention(query, key, value, plan, 0.25),
        tree_attention(query.contiguous(), key, value, plan, 0.25),
    )


def test_an_ascending_run_of_slots_is_read_in_place():
    assert run_or_indices(torch.tensor([7, 8, 9])) == slice(7, 10)
    assert isinstance(run_or_indices(torch.tensor([7, 9, 8])), torch.Tensor)
    assert isinstance(run_or_indices(torch.tensor([7, 7, 9])), torch.Tensor)
    assert run_or_indices(torch.tensor([], dtype=torch.int32)) == slice(0, 0)


def test_wrong_plans_are_refused():
    two = [torch.arange(4), torch.arange(4, 9)]
    with pytest.raises(ValueError, match="row counts"):
        AttentionPlan(two, [1])
    with pytest.raises(ValueError, match="part of the keys"):
        AttentionPlan(two, [1, 6])
    with pytest.raises(ValueError, match=r"\[N, M\] bool"):
        AttentionPlan(two, [2, 2], torch.ones(2, 3, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"\[N, M\] bool"):
        AttentionPlan(two, [2, 2], torch.ones(2, 2, 2))
    with pytest.raises(ValueError, match=r"\[N, M\] bool"):
        AttentionPlan(two, [2, 2], torch.ones(2, 2, 5, dtype=torch.bool))  # the first has 4 keys
    with pytest.raises(ValueError, match="1 tree masks for 2"):
        AttentionPlan(two, [2, 2], [torch.ones(2, 2, dtype=torch.bool)])
    with pytest.raises(ValueError, match="without a prefix"):
        AttentionPlan([torch.arange(2)], [2], torch.zeros(1, 2, 2, dtype=torch.bool))
