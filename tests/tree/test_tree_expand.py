"""Trees of drafters whose rows depend on the drafted path: optimal for those rows, frontier and state as said."""

import itertools
import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_cases import NEG_INF, assert_same, collate, proposals

from jetspec_sglang.tree import DraftProposal, build_tree, build_tree_by_path, scoring_policy
from jetspec_sglang.tree.build_reference import Row, build_reference

VOCAB, WIDTH, DEPTH = 9, 3, 4
SCORINGS = ["accum_logp", "entropy", "hybrid:alpha=0.5", "top2gap"]


def row_after(seed, request, path):
    """A drafter by definition: (tokens, logprobs, entropy) after a path of tokens, many of them tied."""
    dice = random.Random(f"{seed} {request} {path}")
    tokens = dice.sample(range(VOCAB), WIDTH)
    logprobs = sorted((dice.choice([0, -0.25, -0.5, -1, -1.5, NEG_INF]) for _ in tokens), reverse=True)
    return tokens, logprobs, dice.choice([0, 0.25, 0.5, 1])


class PathDrafter:
    """`row_after` as an expander. Its state is each frontier node's path, gathered again by parent index."""

    def __init__(self, seed):
        self.seed = seed
        self.frontiers = []

    def __call__(self, tokens, parents, depth):
        assert tokens.shape == parents.shape
        assert tokens.dtype == parents.dtype == torch.int64
        if depth == 0:
            assert (parents == 0).all()
            self.paths = [[()] for _ in tokens]
        else:
            self.paths = [
                [self.paths[b][parent] + (token,) for token, parent in zip(*request, strict=True)]
                for b, request in enumerate(zip(tokens.tolist(), parents.tolist(), strict=True))
            ]
        self.frontiers.append(tokens.shape[1])
        rows = [[row_after(self.seed, b, path) for path in paths] for b, paths in enumerate(self.paths)]
        token_ids, logprobs, entropy = (
            torch.tensor([[row[field] for row in request] for request in rows]) for field in range(3)
        )
        return DraftProposal(token_ids, logprobs.float(), entropy.float())


def path_to(nodes, slot):
    path = ()
    while slot:
        path = (nodes[slot].token, *path)
        slot = nodes[slot].parent
    return path


def reference(seed, scoring, anchors, budget, depth=DEPTH, expandable=None):
    """Trees by `build_reference`; `expandable[b]`, if given, holds the paths that may have children."""
    policy = scoring_policy(scoring)

    def row_of(request):
        def row(nodes, slot):
            path, level = path_to(nodes, slot), nodes[slot].depth
            if level == depth or (expandable is not None and path not in expandable[request]):
                return None
            tokens, logprobs, entropy = row_after(seed, request, path)
            logprobs, entropy = torch.tensor([[logprobs]]), torch.tensor([[entropy]]).float()
            edges, bonus = policy(logprobs, entropy, range(level, level + 1))
            bonus = np.float32(0) if bonus is None else bonus[0, 0].numpy()
            return Row(tokens, logprobs[0, 0].numpy(), edges[0, 0].numpy(), bonus)

        return row

    return [build_reference(row_of(b), anchor, budget) for b, anchor in enumerate(anchors.tolist())]


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**16), budget=st.integers(1, 24), scoring=st.sampled_from(SCORINGS))
def test_equal_to_the_reference_ties_included(seed, budget, scoring):
    anchors, drafter = torch.tensor([3, 5]), PathDrafter(seed)
    tree = build_tree_by_path(drafter, anchors, budget, width=WIDTH, depth=DEPTH, scoring=scoring)
    tree.validate()
    assert_same(tree, collate(reference(seed, scoring, anchors, budget), budget))
    widest = [min(budget - 1, WIDTH**level) for level in range(min(DEPTH, budget - 1))]
    assert len(drafter.frontiers) <= len(widest)
    assert all(0 < size <= most for size, most in zip(drafter.frontiers, widest, strict=False))


@pytest.mark.parametrize(
    ("row", "asked"),
    [((0.9, 0.09, 0.01), [1, 2, 1]), ((0.34, 0.33, 0.33), [1, 1]), ((1.0, 0.0, 0.0), [1, 1, 1])],
)
@pytest.mark.parametrize("anchors", [[3], [3, 5]])
def test_only_nodes_that_can_have_a_child_in_the_tree_are_asked_for(row, asked, anchors):
    frontiers = []

    def expander(tokens, parents, depth):
        frontiers.append(tokens.shape[1])
        shape = (*tokens.shape, 3)
        return DraftProposal(torch.arange(3).expand(shape), torch.tensor(row).log().expand(shape))

    build_tree_by_path(expander, torch.tensor(anchors), 4, width=3, depth=DEPTH)
    assert frontiers == asked


def test_an_equal_score_is_not_left_out():
    """A child that is certain has its parent's score, and comes after all nodes that were there."""

    def expander(tokens, parents, depth):
        shape = (*tokens.shape, 2)
        row = torch.tensor([0.5, 0.5] if depth == 0 else [1.0, 0.0]).log()
        return DraftProposal(torch.arange(2).expand(shape), row.expand(shape))

    tree = build_tree_by_path(expander, torch.tensor([3]), 5, width=2, depth=4)
    assert tree.depth.tolist() == [[0, 1, 1, 2, 2]]


def frontier_by_definition(seed, scoring, anchors, frontier):
    """Paths of the best `frontier` nodes of each depth, found depth by depth in the whole tree above it."""
    expandable = [{()} for _ in anchors]
    for depth in range(1, DEPTH):
        for b, nodes in enumerate(reference(seed, scoring, anchors, 10_000, depth, expandable)):
            level = [slot for slot, node in enumerate(nodes) if node.depth == depth]
            expandable[b] |= {path_to(nodes, slot) for slot in level[:frontier]}
    return expandable


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    budget=st.integers(1, 16),
    frontier=st.integers(1, 4),
    scoring=st.sampled_from(SCORINGS),
)
def test_a_frontier_limits_what_is_expanded(seed, budget, frontier, scoring):
    anchors, drafter = torch.tensor([3, 5]), PathDrafter(seed)
    limits = {"width": WIDTH, "depth": DEPTH, "frontier": frontier, "scoring": scoring}
    tree = build_tree_by_path(drafter, anchors, budget, **limits)
    tree.validate()
    assert max(drafter.frontiers, default=0) <= frontier
    expandable = frontier_by_definition(seed, scoring, anchors, frontier)
    assert_same(tree, collate(reference(seed, scoring, anchors, budget, DEPTH, expandable), budget))
    smaller = max(1, budget // 2)
    assert_same(tree.prefix(smaller), build_tree_by_path(PathDrafter(seed), anchors, smaller, **limits))


@settings(max_examples=60, deadline=None)
@given(case=proposals(), budget=st.integers(1, 16), scoring=st.sampled_from(SCORINGS), data=st.data())
def test_rows_that_ignore_the_path_give_the_tree_of_a_proposal(case, budget, scoring, data):
    proposal, anchors = case

    def expander(tokens, parents, depth):
        shape = (*tokens.shape, -1)
        return DraftProposal(
            proposal.token_ids[:, depth, None].expand(shape),
            proposal.logprobs[:, depth, None].expand(shape),
            proposal.entropy[:, depth, None].expand(tokens.shape),
        )

    sizes = {"width": proposal.width, "depth": proposal.depth}
    budgets = data.draw(st.lists(st.integers(1, budget), min_size=len(anchors), max_size=len(anchors)))
    how = {"scoring": scoring, "budgets": budgets}
    assert_same(
        build_tree_by_path(expander, anchors, budget, **sizes, **how),
        build_tree(proposal, anchors, budget, **how),
    )


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("depth", "drafts"), [(2, 4), (3, 3), (3, 4)])
def test_no_tree_of_this_size_is_better(seed, depth, drafts):
    """By enumeration of all trees, with the drafter's probabilities along each path."""
    tree = build_tree_by_path(PathDrafter(seed), torch.tensor([3]), drafts + 1, width=WIDTH, depth=depth)
    probability = {(): 1.0}
    for _ in range(depth):
        for path in list(probability):
            tokens, logprobs, _ = row_after(seed, 0, path)
            for token, logprob in zip(tokens, logprobs, strict=True):
                probability[(*path, token)] = probability[path] * math.exp(logprob)
    probability = {path: p for path, p in probability.items() if 0 < len(path) <= depth and p > 0}
    best = max(
        (
            sum(probability[path] for path in nodes)
            for nodes in itertools.combinations(probability, min(drafts, len(probability)))
            if all(len(path) == 1 or path[:-1] in nodes for path in nodes)
        ),
        default=0,
    )
    assert tree.logprob[0, 1:].double().exp().sum().item() == pytest.approx(best, abs=1e-6)


def test_nothing_is_read_back_from_the_device():
    def meta(*shape, dtype=torch.float32):
        return torch.empty(shape, dtype=dtype, device="meta")

    def expander(tokens, parents, depth):
        shape = (*tokens.shape, WIDTH)
        return DraftProposal(meta(*shape, dtype=torch.int64), meta(*shape), meta(*tokens.shape))

    for scoring in SCORINGS:
        tree = build_tree_by_path(
            expander, meta(2, dtype=torch.int64), 16, width=WIDTH, depth=DEPTH, frontier=5, scoring=scoring
        )
        assert tree.tokens.shape == (2, 16)


def test_wrong_arguments_and_answers_are_refused():
    anchors, good = torch.tensor([3]), {"width": WIDTH, "depth": DEPTH}
    for name in ("width", "depth", "frontier"):
        with pytest.raises(ValueError, match=f"{name} is 0"):
            build_tree_by_path(PathDrafter(0), anchors, 4, **{**good, name: 0})
    with pytest.raises(ValueError, match="budget"):
        build_tree_by_path(PathDrafter(0), anchors, 0, **good)
    with pytest.raises(ValueError, match=r"the expander gave \(1, 1, 3\), not \[B, F, W\] = \(1, 1, 2\)"):
        build_tree_by_path(PathDrafter(0), anchors, 4, width=2, depth=DEPTH)

    def without_entropy(tokens, parents, depth):
        return DraftProposal(torch.zeros(1, 1, 1, dtype=torch.int64), torch.zeros(1, 1, 1))

    with pytest.raises(ValueError, match="needs the entropy"):
        build_tree_by_path(without_entropy, anchors, 4, width=1, depth=1, scoring="hybrid")
