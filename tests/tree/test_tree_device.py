"""Accelerator paths never wait for the device: meta tensors have shapes but no values to read."""

import pytest
import torch

from jetspec_sglang.tree import (
    DraftProposal,
    accept_greedy,
    accept_match,
    ancestor_mask,
    build_tree,
    full_mask,
    host_values,
    positions,
    retrieve_links,
)

BATCH, DEPTH, WIDTH, BUDGET, VOCAB = 2, 3, 4, 16, 11


def meta(*shape, dtype=torch.int64):
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.fixture
def tree():
    proposal = DraftProposal(meta(BATCH, DEPTH, WIDTH), meta(BATCH, DEPTH, WIDTH, dtype=torch.float32))
    return build_tree(proposal, meta(BATCH), BUDGET)


def test_reading_a_value_raises():
    with pytest.raises(RuntimeError):
        meta(1).item()


@pytest.mark.parametrize("budget", [1, 2, 16, 200])
def test_build(budget):
    proposal = DraftProposal(meta(BATCH, DEPTH, WIDTH), meta(BATCH, DEPTH, WIDTH, dtype=torch.float32))
    tree = build_tree(proposal, meta(BATCH), budget)
    for field in (tree.tokens, tree.parent, tree.depth):
        assert field.shape == (BATCH, budget)
        assert field.dtype == torch.int64
    assert tree.logprob.dtype == torch.float32
    assert tree.size.shape == (BATCH,)


def test_layout(tree):
    mask = ancestor_mask(tree)
    assert mask.shape == (BATCH, BUDGET, BUDGET)
    assert full_mask(mask, meta(BATCH), prefix_lens_sum=9).shape == (BUDGET * (9 + BATCH * BUDGET),)
    assert positions(tree, meta(BATCH)).shape == (BATCH, BUDGET)
    assert [link.shape for link in retrieve_links(tree)] == [(BATCH, BUDGET)] * 2


def test_accept(tree):
    rows = meta(BATCH, BUDGET, VOCAB, dtype=torch.float32)
    for accepted in (
        accept_greedy(tree, rows, DEPTH),
        accept_match(tree, rows, DEPTH),
    ):
        assert accepted.path.shape == accepted.tokens.shape == (BATCH, DEPTH + 1)
        assert accepted.lengths.shape == (BATCH,)


def test_only_the_host_waits_for_its_copies(tree, monkeypatch):
    """It reads at once what has come, and in the other direction the device's own queue keeps the order."""
    queued = []

    def to(tensor, device, non_blocking=False):
        queued.append(non_blocking)
        return torch.empty_like(tensor, device=device)

    monkeypatch.setattr(torch.Tensor, "to", to)
    there = tree.to(torch.device("cpu"))
    assert there.tokens.device.type == "cpu"
    assert queued == [False] * 5
    queued.clear()
    there.to(torch.device("meta"))
    host_values([1, 2], torch.device("meta"))
    assert queued == [True] * 6
