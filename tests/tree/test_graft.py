"""Grafted trees: valid, nested, the best of all, and learnt chances."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jetspec_sglang.tree import TokenTree
from jetspec_sglang.tree.graft import graft
from jetspec_sglang.tree.graft_reference import edges_of, graft_one
from jetspec_sglang.tree.tally import CERTAIN, IMPOSSIBLE, MEMORY, PRIOR, Tally, judged

SLOTS = 7


def tree_of(edges: dict[tuple[int, ...], float], slots: int) -> TokenTree:
    """A tree of one request from log-chances of edges; parents are among the keys, and come first."""
    fields = [[9] + [-1] * (slots - 1), [-1] * slots, [0] * slots, [0.0] + [float("-inf")] * (slots - 1)]
    where: dict[tuple[int, ...], int] = {(): 0}
    for slot, (path, edge) in enumerate(edges.items(), start=1):
        up = where[path[:-1]]
        where[path] = slot
        fields[0][slot], fields[1][slot], fields[2][slot] = path[-1], up, len(path)
        fields[3][slot] = fields[3][up] + edge
    tokens, parent, depth = (torch.tensor([field]) for field in fields[:3])
    return TokenTree(tokens, parent, depth, torch.tensor([fields[3]]), torch.tensor([1 + len(edges)]))


@st.composite
def trees(draw):
    edges: dict[tuple[int, ...], float] = {}
    for _ in range(draw(st.integers(0, SLOTS - 1))):
        up = draw(st.sampled_from([(), *edges]))
        path = (*up, draw(st.integers(0, 2)))
        edges.setdefault(path, -draw(st.integers(0, 6)) / 4)
    return tree_of(edges, SLOTS)


def paths_of(tree: TokenTree, request: int) -> list[tuple[int, ...]]:
    return list(edges_of(tree, request))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(trees(), trees()), min_size=1, max_size=3), st.integers(1, 2 * SLOTS), st.data())
def test_it_is_the_reference_for_every_request(pairs, budget, data):
    tree, branches = (TokenTree.cat(side) for side in zip(*pairs, strict=True))
    budgets = data.draw(st.lists(st.integers(1, budget), min_size=len(pairs), max_size=len(pairs)))
    grafted = graft(tree, branches, budget, budgets)
    grafted.validate()
    for request, most in enumerate(budgets):
        want = graft_one(tree, branches, request, most)
        assert paths_of(grafted, request) == [path for path, _ in want]
        size = int(grafted.size[request])
        assert grafted.logprob[request, 1:size].tolist() == [float(chance) for _, chance in want]
    assert grafted.budget == int(grafted.size.max())


@settings(max_examples=200, deadline=None)
@given(trees(), trees(), st.integers(2, 2 * SLOTS))
def test_trees_nest(tree, branches, budget):
    large, small = graft(tree, branches, budget), graft(tree, branches, budget - 1)
    cut = large.prefix(small.budget)
    for field in ("tokens", "parent", "depth", "logprob", "size"):
        assert torch.equal(getattr(cut, field), getattr(small, field))


@settings(max_examples=60, deadline=None)
@given(trees(), trees(), st.integers(1, 5))
def test_no_other_nodes_are_likelier_together(tree, branches, budget):
    everything = graft(tree, branches, 4 * SLOTS)
    chance = dict(zip(paths_of(everything, 0), everything.logprob[0, 1:].exp().tolist(), strict=True))
    best = max(
        sum(chance[path] for path in chosen)
        for count in range(min(budget, len(chance) + 1))
        for chosen in combinations(chance, count)
        if all(len(path) == 1 or path[:-1] in chosen for path in chosen)
    )
    got = graft(tree, branches, budget).logprob[0, 1:].exp().sum()
    assert float(got) == pytest.approx(best, abs=1e-5)


def test_a_node_of_both_is_one_node_with_the_larger_chance():
    tree = tree_of({(1,): -1.0, (2,): -1.5, (1, 3): -0.5}, 4)
    branches = tree_of({(1,): -0.25, (1, 4): -0.5}, 3)
    grafted = graft(tree, branches, 8)
    assert paths_of(grafted, 0) == [(1,), (1, 3), (1, 4), (2,)]
    assert grafted.logprob[0].tolist() == [0, -0.25, -0.75, -0.75, -1.5]


def test_nothing_to_graft_leaves_the_tree_as_it_is():
    tree = tree_of({(1,): -0.5, (1, 3): -0.5, (2,): -1.5}, 4)
    roots = TokenTree.roots(torch.tensor([9]))
    for grafted in (graft(tree, roots, 4), graft(roots, tree, 4)):
        for field in ("tokens", "parent", "depth", "logprob", "size"):
            assert torch.equal(getattr(grafted, field), getattr(tree, field))


def test_what_cannot_be_grafted_is_refused():
    tree, other = TokenTree.roots(torch.tensor([1])), TokenTree.roots(torch.tensor([2]))
    with pytest.raises(ValueError, match="same roots"):
        graft(tree, other, 4)
    for budgets in ([0], [5], [1, 1]):
        with pytest.raises(ValueError, match="from 1 to 4"):
            graft(tree, tree, 4, budgets)


@settings(max_examples=200, deadline=None)
@given(trees(), st.lists(st.integers(0, 2), max_size=5))
def test_only_nodes_below_accepted_ones_are_put_to_the_test(tree, actual):
    paths = [(), *paths_of(tree, 0)]
    slots, accepted = judged(
        tree.tokens[0].numpy(), tree.parent[0].numpy(), len(paths), np.array(actual, np.int64)
    )
    text = tuple(actual)
    want = [
        slot
        for slot, path in enumerate(paths)
        if slot and len(path) <= len(text) and path[:-1] == text[: len(path) - 1]
    ]
    assert slots.tolist() == want
    assert accepted.tolist() == [paths[slot] == text[: len(paths[slot])] for slot in want]


def test_a_tally_begins_with_the_claims_and_ends_with_what_came_true():
    tally = Tally(2)
    claim, cell = np.array([0.5, 0.25]), np.array([0, 1])
    assert tally.chance(claim, cell).tolist() == claim.tolist()
    for _ in range(200):  # of kind 0 nine in ten came true, nothing of kind 1
        tally.learn(np.full(10, 0.5), np.zeros(10, np.int64), np.arange(10) > 0)
        tally.learn(np.full(10, 0.25), np.ones(10, np.int64), np.zeros(10, bool))
    assert tally.chance(claim, cell).tolist() == pytest.approx([0.9, 0], abs=0.02)
    assert tally.seen.max() <= MEMORY
    assert tally.chance(np.array([1.0, 0.0]), cell).tolist() == [CERTAIN, IMPOSSIBLE]


def test_a_tally_learns_soon_and_forgets():
    tally = Tally(1)
    zero = np.zeros(1, np.int64)
    tally.learn(np.ones(1) * 0.5, zero, np.array([True]))
    assert tally.factors[0] == pytest.approx((1 + PRIOR) / (0.5 + PRIOR))
    for outcome in (True, False):
        for _ in range(3 * int(MEMORY)):
            tally.learn(np.ones(1) * 0.5, zero, np.array([outcome]))
        assert float(tally.chance(np.array([0.5]), zero)[0]) == pytest.approx(
            CERTAIN if outcome else 0, abs=0.1
        )
