"""Builders: equal to the reference bit for bit, optimal, nested, well-formed."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_cases import NEG_INF, assert_same, collate, proposals

from jetspec_sglang.tree import EXPANSIONS, DraftProposal, ancestor_mask, build_tree, scoring_policy
from jetspec_sglang.tree.build_heap import build_heap
from jetspec_sglang.tree.build_reference import build_eager_reference, build_reference, shared_rows
from jetspec_sglang.tree.build_tensor import build_tensor
from jetspec_sglang.tree.score import ScoredRows, score_rows

# The plain reference adds numpy scalars, which say so when a broken row makes -inf + inf.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")

BUILDERS = [build_heap, build_tensor]
REFERENCES = {"optimal": build_reference, "eager": build_eager_reference}
SCORINGS = [
    "accum_logp",
    "entropy",
    "hybrid",
    "hybrid:alpha=0.25",
    "top2gap",
    "top2gap:beta=2,gap=0.5",
]


@pytest.mark.parametrize("expansion", EXPANSIONS)
@pytest.mark.parametrize("build", BUILDERS)
@settings(max_examples=300, deadline=None)
@given(case=proposals(), budget=st.integers(1, 24), scoring=st.sampled_from(SCORINGS), data=st.data())
def test_builders_equal_the_reference_ties_included(expansion, build, case, budget, scoring, data):
    proposal, anchors = case
    batch = len(anchors)
    sizes = data.draw(st.none() | st.lists(st.integers(1, budget), min_size=batch, max_size=batch))
    rows = score_rows(scoring_policy(scoring), proposal, range(proposal.depth))
    expected = [
        REFERENCES[expansion](shared_rows(rows, b), anchor, sizes[b] if sizes else budget)
        for b, anchor in enumerate(anchors.tolist())
    ]
    tree = build(rows, anchors, budget, sizes=sizes, eager=expansion == "eager")
    tree.validate()
    assert_same(tree, collate(expected, budget))
    if expansion == "optimal" and scoring == "accum_logp":
        assert (tree.logprob.diff(dim=1)[tree.logprob[:, 1:] > NEG_INF] <= 0).all()


@pytest.mark.parametrize("expansion", EXPANSIONS)
@settings(max_examples=60, deadline=None)
@given(case=proposals(), budget=st.integers(1, 24), with_bonus=st.booleans())
def test_edges_need_not_be_log_probabilities(expansion, case, budget, with_bonus):
    """As a third party's policy may have it: here rank alone decides."""
    proposal, anchors = case
    edges = -torch.arange(proposal.width).expand_as(proposal.logprobs).float()
    edges = torch.where(proposal.logprobs.isfinite(), edges, NEG_INF)
    bonus = proposal.entropy if with_bonus else None
    rows = ScoredRows(proposal.token_ids, proposal.logprobs, edges, bonus)
    build = REFERENCES[expansion]
    expected = [build(shared_rows(rows, b), anchor, budget) for b, anchor in enumerate(anchors.tolist())]
    for build in BUILDERS:
        tree = build(rows, anchors, budget, sizes=None, eager=expansion == "eager")
        tree.validate()
        assert_same(tree, collate(expected, budget))


@pytest.mark.parametrize("expansion", EXPANSIONS)
@settings(max_examples=60, deadline=None)
@given(case=proposals(), budget=st.integers(1, 24), scoring=st.sampled_from(SCORINGS), data=st.data())
def test_every_smaller_tree_is_a_prefix(expansion, case, budget, scoring, data):
    proposal, anchors = case
    smaller = data.draw(st.integers(1, budget))
    how = {"scoring": scoring, "expansion": expansion}
    whole = build_tree(proposal, anchors, budget, **how)
    tree = whole.prefix(smaller)
    tree.validate()
    assert_same(tree, build_tree(proposal, anchors, smaller, **how))
    assert torch.equal(ancestor_mask(tree), ancestor_mask(whole)[:, :smaller, :smaller])


@pytest.mark.parametrize("expansion", EXPANSIONS)
@settings(max_examples=60, deadline=None)
@given(case=proposals(), budget=st.integers(1, 16), data=st.data())
def test_each_request_gets_the_tree_of_its_own_budget(expansion, case, budget, data):
    proposal, anchors = case
    batch = len(anchors)
    budgets = data.draw(st.lists(st.integers(1, budget), min_size=batch, max_size=batch))
    tree = build_tree(proposal, anchors, budget, expansion=expansion, budgets=budgets)
    tree.validate()
    assert_same(
        tree, build_tree(proposal, anchors, budget, expansion=expansion, budgets=torch.tensor(budgets))
    )
    for b, own in enumerate(budgets):
        alone = build_tree(proposal, anchors, own, expansion=expansion).rows(torch.tensor([b]))
        assert_same(tree.rows(torch.tensor([b])).prefix(own), alone)
        assert (tree.tokens[b, own:] == -1).all()


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
    """Three nodes below the root at width 2: all children at once never reach the third level."""
    logprobs = torch.tensor([[0.9, 0.05], [0.9, 0.05], [0.9, 0.05]]).log()
    proposal = DraftProposal(torch.arange(2).expand(1, 3, 2), logprobs[None])
    tree = build_tree(proposal, torch.tensor([0]), 4, expansion="eager")
    assert tree.depth[0].tolist() == [0, 1, 1, 2]
    assert tree.logprob[0, 1:].exp().sum() < best_by_enumeration(logprobs, 3) - 0.1


@pytest.mark.parametrize("expansion", EXPANSIONS)
@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize("budget", [1, 2, 16, 100])
def test_nothing_is_read_back_from_the_device(expansion, scoring, budget):
    """Meta tensors have shapes and no values to read."""
    sizes = torch.empty(2, 3, 4, dtype=torch.int64, device="meta")
    proposal = DraftProposal(sizes, sizes.float(), sizes[:, :, 0].float())
    anchors = budgets = sizes[:, 0, 0]
    tree = build_tree(proposal, anchors, budget, scoring=scoring, expansion=expansion, budgets=budgets)
    for field in (tree.tokens, tree.parent, tree.depth):
        assert field.shape == (2, budget)
        assert field.dtype == torch.int64
    assert tree.logprob.dtype == torch.float32


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


@pytest.mark.parametrize("expansion", EXPANSIONS)
@pytest.mark.parametrize("worst", [NEG_INF, float("nan"), float("inf")])
def test_a_row_ends_at_its_first_impossible_candidate(expansion, worst):
    """Even where a broken drafter puts likely candidates behind it."""
    logprobs = torch.tensor([[[-0.5, worst, -0.1], [-1.0, -2.0, worst]]])
    proposal = DraftProposal(torch.arange(6).view(1, 2, 3), logprobs)
    rows = score_rows(scoring_policy("accum_logp"), proposal, range(2))
    expected = REFERENCES[expansion](shared_rows(rows, 0), 9, 8)
    assert [node.token for node in expected] == [9, 0, 3, 4]
    for build in BUILDERS:
        tree = build(rows, torch.tensor([9]), 8, sizes=None, eager=expansion == "eager")
        assert_same(tree, collate([expected], 8))


def test_wrong_arguments_are_refused():
    proposal = DraftProposal(torch.zeros(2, 3, 1, dtype=torch.int64), torch.zeros(2, 3, 1))
    anchors = torch.tensor([1, 2])
    for kwargs, message in [
        ({"budget": 0}, "budget"),
        ({"budget": 4, "width": 2}, "width"),
        ({"budget": 4, "depth": 0}, "depth"),
        ({"budget": 4, "scoring": "magic"}, "known: accum_logp"),
        ({"budget": 4, "scoring": "entropy"}, "needs the entropy"),
        ({"budget": 4, "expansion": "lazy"}, "known: optimal, eager"),
        ({"budget": 4, "budgets": [4]}, "budgets"),
        ({"budget": 4, "budgets": [4, 5]}, "budgets"),
        ({"budget": 4, "budgets": torch.tensor([0, 4])}, "budgets"),
        ({"budget": 4, "budgets": torch.tensor([4.0, 4.0])}, "budgets"),
        ({"budget": 5000}, "budget 5000"),
    ]:
        with pytest.raises(ValueError, match=message):
            build_tree(proposal, anchors, **kwargs)
    for wrong in (anchors[:1], anchors.int()):
        with pytest.raises(ValueError, match="anchors"):
            build_tree(proposal, wrong, 4)
    with pytest.raises(ValueError, match="budget"):
        build_tree(proposal, anchors, 4).prefix(5)


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
