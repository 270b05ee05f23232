"""What the CUDA backends are handed, against emulators of the layouts that they document.

FlashInfer (`BatchPrefillWithPagedKVCacheWrapper.plan`): `custom_mask` is a flat bool of sum(q_len * kv_len), a
request's q rows one after another, each over all of its keys, prefix included; keys are `kv_indices[kv_indptr[b] :
kv_indptr[b + 1]]`. Triton (`extend_attention_fwd`): the same flat mask, found through `mask_indptr`, the running sum
of N * (prefix + N).
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from jetspec_sglang.inputs import RoundState, TreeVerifyInput
from jetspec_sglang.tree import DraftProposal, build_tree, full_mask

LENS = [3, 11, 1]
NODES = 7


def some_tree(batch: int, nodes: int):
    torch.manual_seed(0)
    logprobs = torch.rand(batch, 4, 3).neg().sort(-1, descending=True).values
    tokens = torch.stack([torch.randperm(50)[:12].view(4, 3) for _ in range(batch)])
    return build_tree(DraftProposal(tokens, logprobs), torch.arange(batch), nodes)


def some_batch(lens: list[int]) -> SimpleNamespace:
    return SimpleNamespace(
        seq_lens=torch.tensor(lens), seq_lens_sum=sum(lens), seq_lens_cpu=torch.tensor(lens)
    )


@pytest.fixture
def verify():
    """The input with the flat mask that only accelerators get."""
    tree, batch = some_tree(len(LENS), NODES), some_batch(LENS)
    made = TreeVerifyInput.of(tree, batch, limit=1000)
    made.custom_mask = full_mask(made.tree_mask, batch.seq_lens, batch.seq_lens_sum)
    return tree, made


def ancestors_and_self(tree, request: int, node: int) -> set[int]:
    seen = {node}
    while (node := int(tree.parent[request, node])) >= 0:
        seen.add(node)
    return seen


class Translator:
    """Stands in for SGLang's index translator: request r's key at position p is slot 1000 * r + p."""

    def pack_read_stream(self, plan, *, req_pool_indices, seq_lens, indptr, out, kind, **sizes) -> None:
        for request, (start, length) in enumerate(zip(indptr.tolist(), seq_lens.tolist(), strict=False)):
            out[start : start + length] = torch.arange(length) + 1000 * int(req_pool_indices[request])


def test_flashinfer_reads_each_nodes_prefix_and_ancestors(verify):
    tree, made = verify
    rows = torch.tensor([4, 2, 9])
    kv_indices, kv_indptr, qo_indptr, mask = made.generate_attn_arg_prefill(
        req_pool_indices=rows,
        paged_kernel_lens=torch.tensor(LENS),
        paged_kernel_lens_sum=sum(LENS),
        translator=Translator(),
        plan=None,
    )
    assert qo_indptr.tolist() == [NODES * b for b in range(len(LENS) + 1)]
    offset = 0
    for request, prefix in enumerate(LENS):
        keys = kv_indices[kv_indptr[request] : kv_indptr[request + 1]]
        assert len(keys) == prefix + NODES
        for node in range(NODES):
            row = mask[offset : offset + len(keys)]
            offset += len(keys)
            read = set((keys[row] - 1000 * rows[request]).tolist())
            assert read == set(range(prefix)) | {prefix + a for a in ancestors_and_self(tree, request, node)}
    assert offset == mask.numel()


def test_triton_finds_each_requests_rows_through_its_running_sum(verify):
    tree, made = verify
    lens = torch.tensor(LENS)
    mask_indptr = torch.nn.functional.pad((NODES * (lens + NODES)).cumsum(0), (1, 0))
    for request, prefix in enumerate(LENS):
        stride = prefix + NODES
        for node in range(NODES):
            start = int(mask_indptr[request]) + node * stride
            row = made.custom_mask[start : start + stride]
            assert row[:prefix].all()
            assert set(row[prefix:].nonzero()[:, 0].tolist()) == ancestors_and_self(tree, request, node)
    assert int(mask_indptr[-1]) == made.custom_mask.numel()


def test_packed_bits_are_little_endian_per_request(verify):
    """FlashInfer's `packbits`: bit i of a byte is entry 8k + i. A round trip through numpy's keeps the mask."""
    _, made = verify
    bits = made.custom_mask.numpy()
    packed = np.packbits(bits, bitorder="little")
    assert (np.unpackbits(packed, count=len(bits), bitorder="little").astype(bool) == bits).all()


def test_positions_stop_at_the_contexts_end():
    tree = some_tree(1, NODES)
    made = TreeVerifyInput.of(tree, some_batch([98]), limit=100)
    assert made.positions.max() == 99
    assert made.positions[0] == 98


def test_padding_nodes_hold_an_embeddable_token():
    tree = build_tree(
        DraftProposal(torch.tensor([[[5]]]), torch.tensor([[[-0.5]]])), torch.tensor([3]), budget=4
    )
    made = TreeVerifyInput.of(tree, some_batch([2]), limit=100)
    assert made.draft_token.tolist() == [3, 5, 0, 0]
    assert made.tree_mask[0, 2].tolist() == [False, False, True, False]


def test_round_state_follows_its_batch():
    state = RoundState(torch.tensor([10, 11, 12]))
    state.filter_batch(torch.tensor([2, 0]))
    state.merge_batch(RoundState(torch.tensor([20])))
    assert state.bonus_tokens.tolist() == [12, 10, 20]
    relayed = RoundState(torch.tensor([0]))
    relayed.future_indices = torch.tensor([7, 8])
    other = RoundState(torch.tensor([0]))
    other.future_indices = torch.tensor([9])
    relayed.merge_batch(other)
    relayed.filter_batch(torch.tensor([2, 1]))
    assert relayed.future_indices.tolist() == [9, 8]
    assert state.is_draft_input()
