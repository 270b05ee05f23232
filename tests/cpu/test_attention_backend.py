"""The backend reads rows, lengths and visibility from SGLang's batch as the contract says."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.layers.radix_attention import AttentionType, RadixAttention
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from jetspec_sglang.cpu.attention_backend import CpuAttentionBackend
from jetspec_sglang.cpu.kv_pool import CpuKVPool
from jetspec_sglang.kernels.tree_attention_reference import tree_attention_reference

HEADS, KV_HEADS, DIM, SLOTS = 4, 2, 8, 64
ROWS_OF = [[5, 6, 7, 8, 20, 21, 22, 23], [40, 30, 31, 9, 10, 11, 12, 13]]  # slots of the two requests


@pytest.fixture
def backend():
    pool = CpuKVPool(
        size=SLOTS, page_size=1, dtype=torch.float32, head_num=KV_HEADS, head_dim=DIM, layer_num=1, device="cpu",
        enable_memory_saver=False,
    )  # fmt: skip
    for buffer in (pool.k_buffer[0], pool.v_buffer[0]):
        buffer.fill_(float("nan"))
        for slots in ROWS_OF:
            buffer[slots] = torch.randn(len(slots), KV_HEADS, DIM)
    table = torch.zeros(4, 16, dtype=torch.int32)
    for request, slots in zip((3, 1), ROWS_OF, strict=True):
        table[request, : len(slots)] = torch.tensor(slots, dtype=torch.int32)
    runner = SimpleNamespace(
        req_to_token_pool=SimpleNamespace(req_to_token=table), token_to_kv_pool=pool, use_mla_backend=False
    )
    return CpuAttentionBackend(runner)


def layer(**changes):
    return RadixAttention(HEADS, DIM, 0.3, KV_HEADS, layer_id=0, **changes)


def batch(mode, prefixes, rows, tree_mask=None):
    """A stand-in with the fields that the backend reads; seq_lens follow SGLang's meaning in each mode."""
    verify = mode == ForwardMode.TARGET_VERIFY
    lengths = prefixes if verify else [p + r for p, r in zip(prefixes, rows, strict=True)]
    new = [ROWS_OF[b][p : p + r] for b, (p, r) in enumerate(zip(prefixes, rows, strict=True))]
    return SimpleNamespace(
        forward_mode=mode,
        req_pool_indices=torch.tensor([3, 1][: len(rows)]),
        seq_lens=torch.tensor(lengths),
        seq_lens_cpu=torch.tensor(lengths),
        extend_seq_lens_cpu=rows if mode == ForwardMode.EXTEND else None,
        out_cache_loc=torch.tensor([slot for slots in new for slot in slots]),
        spec_info=SimpleNamespace(draft_token_num=rows[0], tree_mask=tree_mask) if verify else None,
    )


def check(backend, forward_batch, prefixes, rows, visible, attn_type=AttentionType.DECODER):
    q = torch.randn(sum(rows), HEADS * DIM)
    k, v = torch.randn(sum(rows), KV_HEADS, DIM), torch.randn(sum(rows), KV_HEADS, DIM)
    backend.init_forward_metadata(forward_batch)
    got = backend.forward(q, k, v, layer(attn_type=attn_type), forward_batch)
    pool = backend.token_to_kv_pool
    assert torch.equal(pool.k_buffer[0][forward_batch.out_cache_loc], k)
    slots = [torch.tensor(ROWS_OF[b][: p + r]) for b, (p, r) in enumerate(zip(prefixes, rows, strict=True))]
    expected = tree_attention_reference(
        q.view(-1, HEADS, DIM), pool.k_buffer[0], pool.v_buffer[0], slots, rows, visible, 0.3
    )
    torch.testing.assert_close(got, expected)


def chain(rows):
    return [torch.ones(count, count, dtype=torch.bool).tril() for count in rows]


@pytest.mark.parametrize(
    ("mode", "prefixes", "rows"),
    [
        (ForwardMode.DECODE, [4, 6], [1, 1]),
        (ForwardMode.EXTEND, [0, 5], [6, 2]),
        (ForwardMode.TARGET_VERIFY, [3, 4], [4, 4]),
    ],
)
def test_causal_modes(backend, mode, prefixes, rows):
    check(backend, batch(mode, prefixes, rows), prefixes, rows, chain(rows))


def test_verify_with_a_tree_mask(backend):
    mask = torch.rand(2, 4, 4) < 0.5
    forward_batch = batch(ForwardMode.TARGET_VERIFY, [3, 4], [4, 4], mask)
    check(backend, forward_batch, [3, 4], [4, 4], list(mask))


def test_bidirectional_block(backend):
    full = [torch.ones(4, 4, dtype=torch.bool)] * 2
    forward_batch = batch(ForwardMode.TARGET_VERIFY, [3, 4], [4, 4])
    check(backend, forward_batch, [3, 4], [4, 4], full, AttentionType.ENCODER_ONLY)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sliding_window_size": 8}, "sliding windows"),
        ({"logit_cap": 30.0}, "capped logits"),
        ({"is_cross_attention": True}, "cross attention"),
    ],
)
def test_what_it_cannot_compute_is_refused(backend, changes, message):
    forward_batch = batch(ForwardMode.DECODE, [4], [1])
    backend.init_forward_metadata(forward_batch)
    with pytest.raises(NotImplementedError, match=message):
        backend.forward(torch.randn(1, HEADS * DIM), None, None, layer(**changes), forward_batch)
