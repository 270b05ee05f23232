"""Builders: equal to the reference bit for bit, optimal, nested, well-formed."""

import heapq
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_cases import NEG_INF, assert_same, collate, proposals

from jetspec_sglang.tree import DraftProposal, ancestor_mask, build_tree, scoring_policy
from jetspec_sglang.tree.build_heap import build_heap
from jetspec_sglang.tree.build_levels import build_levels
from jetspec_sglang.tree.build_reference import build_reference


def reference(proposal, anchors, budget):
    rows = zip(proposal.token_ids, proposal.logprobs, anchors.tolist(), strict=True)
    return collate([build_reference(ids, logprobs, anchor, budget) for ids, logprobs, anchor in rows], budget)


@pytest.mark.parametrize("build", [build_heap, build_levels])
@settings(max_examples=300, deadline=None)
@given(case=proposals(), budget=st.integers(1, 24))
def test_builders_equal_the_reference_ties_included(build, case, budget):
    proposal, anchors = case
    tree = build(proposal.token_ids, proposal.logprobs, anchors, budget)
    tree.validate()
    assert_same(tree, reference(proposal, anchors, budget))
    assert (tree.logprob.diff(dim=1)[tree.logprob[:, 1:] > NEG_INF] <= 0).all()


@settings(max_examples=60, deadline=None)
@given(case=proposals(), budget=st.integers(1, 24), data=st.data())
def test_every_smaller_tree_is_a_prefix(case, budget, data):
    proposal, anchors = case
    smaller = data.draw(st.integers(1, budget))
    tree = build_tree(proposal, anchors, budget).prefix(smaller)
    tree.validate()
    assert_same(tree, build_tree(proposal, anchors, smaller))
    whole = ancestor_mask(build_tree(proposal, anchors, budget))
    assert torch.equal(ancestor_mask(tree), whole[:, :smaller, :smaller])


@settings(max_examples=60, deadline=None)
@given(case=proposals(), budget=st.integers(1, 16), data=st.data())
def test_width_and_depth_use_a_corner_of_the_grid(case, budget, data):
    proposal, anchors = case
    depth = data.draw(st.integers(1, proposal.depth))
    width = data.draw(st.integers(1, proposal.width))
    corner = DraftProposal(proposal.token_ids[:, :depth, :width], proposal.logprobs[:, :depth, :width])
    assert_same(
        build_tree(proposal, anchors, budget, width=width, depth=depth), build_tree(corner, anchors, budget)
    )


def path_probabilities(logprobs):
    """Probability of every path of ranks on the grid, in fp64."""
    depth, width = logprobs.shape
    return {
        path: math.exp(sum(logprobs[d, rank].item() for d, rank in enumerate(path)))
        for length in range(1, depth + 1)
        for path in itertools.product(range(width), repeat=length)
    }


def best_by_enumeration(logprobs, drafts):
    """Largest sum of path probabilities over all trees of `drafts` nodes below the root."""
    prob = path_probabilities(logprobs)
    closed = (
        nodes
        for nodes in itertools.combinations(prob, drafts)
        if all(len(path) == 1 or path[:-1] in nodes for path in nodes)
    )
    return max(sum(prob[path] for path in nodes) for nodes in closed)


def eager_expansion(logprobs, budget):
    """The mutant: pop one node, add all its children (the paper's expansion)."""
    depth, width = logprobs.shape
    kept, heap = [], [(0.0, ())]
    while heap:
        negated, path = heapq.heappop(heap)
        for rank in range(width if len(path) < depth else 0):
            if len(kept) == budget - 1:
                return sum(math.exp(score) for score in kept)
            kept.append(-negated + logprobs[len(path), rank].item())
            heapq.heappush(heap, (-kept[-1], (*path, rank)))
    return sum(math.exp(score) for score in kept)


GRIDS = [(3, 2, 2), (2, 3, 3), (2, 3, 4), (3, 2, 5), (4, 1, 3)]


@pytest.mark.parametrize(("depth", "width", "drafts"), GRIDS)
@pytest.mark.parametrize("seed", range(4))
def test_no_tree_of_this_size_is_better(depth, width, drafts, seed):
    generator = torch.Generator().manual_seed(seed)
    logprobs = torch.log_softmax(2 * torch.randn(depth, 8, generator=generator), -1).topk(width).values
    ids = torch.arange(width).expand(1, depth, width)
    tree = build_tree(DraftProposal(ids, logprobs[None]), torch.tensor([0]), drafts + 1)
    value = tree.logprob[0, 1:].double().exp().sum().item()
    assert value == pytest.approx(best_by_enumeration(logprobs, drafts), abs=1e-6)


def test_enumeration_catches_eager_expansion():
    logprobs = torch.tensor([[0.9, 0.05], [0.9, 0.05], [0.9, 0.05]]).log()
    assert eager_expansion(logprobs, 4) < best_by_enumeration(logprobs, 3) - 0.1


def test_zero_logprobs_keep_parents_before_children():
    logprobs = torch.zeros(1, 3, 2)
    proposal = DraftProposal(torch.arange(2).expand(1, 3, 2), logprobs)
    tree = build_tree(proposal, torch.tensor([9]), 15)
    tree.validate()
    assert tree.depth[0].tolist() == [0] + [1] * 2 + [2] * 4 + [3] * 8
    assert tree.parent[0].tolist() == [-1, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]


def test_impossible_candidates_leave_padding():
    logprobs = torch.tensor([[[-0.1, NEG_INF], [NEG_INF, NEG_INF]], [[-1.0, -2.0], [-0.5, -3.0]]])
    proposal = DraftProposal(torch.tensor([[[3, 4], [5, 6]]] * 2), logprobs)
    tree = build_tree(proposal, torch.tensor([1, 2]), 9)
    tree.validate()
    assert tree.size.tolist() == [2, 7]
    assert tree.tokens[0].tolist() == [1, 3] + [-1] * 7


def test_nan_is_an_error_in_the_reference_and_never_drafted_elsewhere():
    logprobs = torch.tensor([[[-0.5, float("nan")]]])
    ids, anchors = torch.tensor([[[3, 4]]]), torch.tensor([1])
    with pytest.raises(ValueError, match="NaN"):
        build_reference(ids[0], logprobs[0], 1, 3)
    for build in (build_heap, build_levels):
        assert build(ids, logprobs, anchors, 3).tokens.tolist() == [[1, 3, -1]]


def test_wrong_arguments_are_refused():
    proposal = DraftProposal(torch.zeros(2, 3, 1, dtype=torch.int64), torch.zeros(2, 3, 1))
    anchors = torch.tensor([1, 2])
    for kwargs, message in [
        ({"budget": 0}, "budget"),
        ({"budget": 4, "width": 2}, "width"),
        ({"budget": 4, "depth": 0}, "depth"),
        ({"budget": 4, "scoring": "magic"}, "known: accum_logp"),
    ]:
        with pytest.raises(ValueError, match=message):
            build_tree(proposal, anchors, **kwargs)
    for wrong in (anchors[:1], anchors.int()):
        with pytest.raises(ValueError, match="anchors"):
            build_tree(proposal, wrong, 4)
    with pytest.raises(ValueError, match="budget"):
        build_tree(proposal, anchors, 4).prefix(5)


def test_default_policy_adds_up_logprobs():
    proposal = DraftProposal(torch.zeros(1, 2, 1, dtype=torch.int64), -torch.ones(1, 2, 1))
    assert scoring_policy("accum_logp")(proposal) is proposal.logprobs


@pytest.mark.parametrize(
    ("token_ids", "logprobs", "entropy", "error"),
    [
        (torch.zeros(2, 3).long(), torch.zeros(2, 3), None, ValueError),
        (torch.zeros(2, 3, 0).long(), torch.zeros(2, 3, 0), None, ValueError),
        (torch.zeros(2, 3, 1).long(), torch.zeros(2, 3, 2), None, ValueError),
        (torch.zeros(2, 3, 1).int(), torch.zeros(2, 3, 1), None, TypeError),
        (torch.zeros(2, 3, 1).long(), torch.zeros(2, 3, 1).bfloat16(), None, TypeError),
        (torch.zeros(2, 3, 1).long(), torch.zeros(2, 3, 1), torch.zeros(2, 2), ValueError),
        (torch.zeros(2, 3, 1).long(), torch.zeros(2, 3, 1), torch.zeros(2, 3).double(), TypeError),
    ],
)
def test_a_malformed_proposal_is_refused(token_ids, logprobs, entropy, error):
    with pytest.raises(error):
        DraftProposal(token_ids, logprobs, entropy)


GOOD = [(7, -1, 0, 0.0), (1, 0, 1, -1.0), (2, 0, 1, -2.0), (1, 2, 2, -3.0)]


@pytest.mark.parametrize(
    ("slot", "node", "message"),
    [
        (0, (7, 0, 0, 0.0), "root"),
        (1, (-1, 0, 1, -1.0), "token"),
        (1, (1, 1, 1, -1.0), "parents come before"),
        (2, (2, 0, 2, -2.0), "depth"),
        (3, (1, 2, 2, -1.5), "logprob"),
        (2, (1, 0, 1, -2.0), "two children"),
        (4, (-1, 0, 0, NEG_INF), "padding"),
    ],
)
def test_validate_finds_each_broken_invariant(slot, node, message):
    tree = collate([GOOD, GOOD], 5)
    tree.validate()
    for field, value in zip((tree.tokens, tree.parent, tree.depth, tree.logprob), node, strict=True):
        field[1, slot] = value
    with pytest.raises(ValueError, match=f"request 1: .*{message}"):
        tree.validate()
