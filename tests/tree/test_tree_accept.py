"""The accepting walk: lazy, eager and reference agree; both rules; sampling."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_cases import assert_same, collate, trees

from jetspec_sglang.tree import (
    NONE,
    Acceptance,
    accept_greedy,
    accept_match,
    follow,
    sample,
    walk,
)
from jetspec_sglang.tree.accept_reference import follow_reference

VOCAB = 4


def reference(tree, choice, max_depth):
    def padded(row):
        return row + [NONE] * (max_depth + 1 - len(row))

    walks = [
        follow_reference(*fields, max_depth)
        for fields in zip(tree.tokens.tolist(), tree.parent.tolist(), choice.tolist(), strict=True)
    ]
    return Acceptance(
        path=torch.tensor([padded(path) for path, _ in walks]),
        lengths=torch.tensor([len(path) for path, _ in walks]),
        tokens=torch.tensor([padded(tokens) for _, tokens in walks]),
    )


def random_logits(tree, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(*tree.tokens.shape, VOCAB, generator=generator)
    return logits, torch.rand(tree.tokens.shape, dtype=torch.float64, generator=generator)


cases = given(tree=trees(vocab=VOCAB), seed=st.integers(0, 2**16), max_depth=st.integers(0, 9))


@settings(max_examples=150, deadline=None)
@cases
def test_follow_and_walk_equal_the_reference(tree, seed, max_depth):
    choice = random_logits(tree, seed)[0].argmax(-1)
    expected = reference(tree, choice, max_depth)
    assert_same(follow(tree, choice, max_depth), expected)
    assert_same(walk(tree, lambda nodes: choice.gather(1, nodes), max_depth), expected)


@settings(max_examples=60, deadline=None)
@cases
def test_each_rule_is_the_walk_over_its_choices(tree, seed, max_depth):
    logits, uniforms = random_logits(tree, seed)
    probs = logits.softmax(-1)
    argmax, drawn = logits.argmax(-1), sample(probs, uniforms)

    assert_same(accept_greedy(tree, logits, max_depth), reference(tree, argmax, max_depth))
    match = accept_match(tree, probs, max_depth, uniforms=uniforms)
    assert_same(match, reference(tree, drawn, max_depth))


def test_a_whole_path_then_the_bonus():
    tree = collate([[(9, -1, 0, 0.0), (1, 0, 1, -1.0), (2, 0, 1, -1.5), (3, 2, 2, -2.0)]], 6)
    accepted = follow(tree, torch.tensor([[2, 0, 3, 1, 0, 0]]), max_depth=3)
    assert accepted.path.tolist() == [[0, 2, 3, -1]]
    assert accepted.tokens.tolist() == [[2, 3, 1, -1]]
    assert accepted.lengths.tolist() == [3]


def test_one_early_mismatch_ends_a_chain_of_any_length():
    for size in range(2, 20):
        chain = collate([[(1, slot - 1, slot, -float(slot)) for slot in range(size)]], size)
        for wrong in range(size):
            choice = torch.ones(1, size, dtype=torch.int64)
            choice[0, wrong] = 0
            assert follow(chain, choice, size - 1).lengths.tolist() == [wrong + 1]


def test_generator_makes_a_round_repeatable():
    tree = collate([[(9, -1, 0, 0.0), (1, 0, 1, -1.0)]] * 64, 2)
    probs = torch.full((64, 2, VOCAB), 1 / VOCAB)
    first, second, other = (
        accept_match(tree, probs, 1, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert_same(first, second)
    assert not torch.equal(first.tokens, other.tokens)


def test_sample_stays_inside_the_support():
    probs = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0])
    uniforms = torch.tensor([0.0, 0.5 - 1e-12, 0.5, 1 - 2**-53], dtype=torch.float64)
    assert sample(probs.expand(4, 5), uniforms).tolist() == [1, 1, 3, 3]
    # Rows that do not sum to 1 are scaled.
    assert sample(3 * probs.expand(4, 5), uniforms).tolist() == [1, 1, 3, 3]


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_sampled_frequencies(temperature):
    draws = 40_000
    probs = (torch.tensor([2.0, 1.0, 0.0, -1.0]) / temperature).softmax(-1)
    uniforms = torch.rand(draws, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    counts = sample(probs.expand(draws, 4), uniforms).bincount(minlength=4)
    chi2 = ((counts - draws * probs) ** 2 / (draws * probs)).sum()
    assert chi2 < 16.27  # 3 degrees of freedom, 0.1 %
