"""Sampled trees: drawn by the law of the reference into a shape that draws can't change; verified node by node as
the references do; refused where they can't be right."""

import itertools
import math
from collections import Counter

import pytest
import torch
from enumerating_dice import law_of, plain_law_of
from hypothesis import given, settings
from hypothesis import strategies as st
from law_cases import Target, mean_length, node_paths, target_rows
from sampled_cases import (
    FAST,
    REFERENCES,
    SHAPES,
    VOCAB,
    as_law,
    draft_rows,
    fast_law,
    law_rows,
    shape_of,
)
from scipy.stats import chi2
from tree_cases import assert_same, collate, proposals

from jetspec_sglang.tree import (
    DraftProposal,
    RandomDice,
    accept_rejection,
    accept_traversal,
    build_tree,
    drafting_law,
    draw_tree,
    drawable,
    post_order,
)
from jetspec_sglang.tree import (
    given as at_every_node,
)
from jetspec_sglang.tree.missing_law import at_start, try_children, try_children_tensor
from jetspec_sglang.tree.sampled_reference import draw_tokens_reference

TEMPERATURES = st.sampled_from([0.05, 0.6, 1.0, 2.0])


def dice(seed=0):
    return RandomDice(torch.Generator().manual_seed(seed))


def drawn(proposal, anchors, budget, temperature=1.0, seed=0, **shaping):
    law = drafting_law(proposal, torch.full((proposal.batch_size,), temperature))
    return draw_tree(build_tree(drawable(proposal, law), anchors, budget, **shaping), law, dice(seed))


@st.composite
def finite_proposals(draw):
    """Proposals whose first candidates can always be drafted."""
    proposal, anchors = draw(proposals())
    logprobs = proposal.logprobs.clone()
    logprobs[..., 0] = logprobs[..., 0].clamp(min=-8)
    return DraftProposal(proposal.token_ids, logprobs), anchors


cases = given(
    case=finite_proposals(), budget=st.integers(1, 12), temperature=TEMPERATURES, seed=st.integers(0, 99)
)


@settings(max_examples=100, deadline=None)
@cases
def test_a_valid_tree_of_the_deterministic_shape(case, budget, temperature, seed):
    proposal, anchors = case
    tree = drawn(proposal, anchors, budget, temperature, seed)
    tree.validate()
    law = drafting_law(proposal, torch.full((len(anchors),), temperature))
    shape = build_tree(drawable(proposal, law), anchors, budget)
    for name in ("parent", "depth", "size", "logprob"):
        assert torch.equal(getattr(tree, name), getattr(shape, name)), name
    assert torch.equal(tree.tokens[:, 0], anchors)
    for b, size in enumerate(tree.size.tolist()):
        for slot in range(1, size):
            row, pick = int(tree.depth[b, slot]) - 1, int(tree.pick[b, slot])
            assert tree.tokens[b, slot] == proposal.token_ids[b, row, pick]
            assert tree.draft[b, row, pick] > 0


@pytest.mark.parametrize("shape", SHAPES)
def test_drawn_by_the_law_of_the_reference(shape):
    parents = SHAPES[shape]
    law = as_law(draft_rows(3))
    tree = shape_of(parents)

    def fast(dice, rows):
        drawn = draw_tree(shape_of(parents, rows), law.rows(torch.zeros(rows, dtype=torch.int64)), dice)
        return [tuple(row) for row in drawn.tokens[:, 1:].tolist()]

    def reference(dice):
        lists = tree.parent[0].tolist(), tree.depth[0].tolist(), law_rows(law)
        return tuple(draw_tokens_reference(*lists, dice)[1:])

    assert law_of(fast) == pytest.approx(plain_law_of(reference), abs=1e-12)


def test_tokens_of_the_shape_do_not_matter():
    law, shape = as_law(draft_rows(3)), shape_of(SHAPES["unbalanced"])
    other = collate(
        [[(9 - t, *rest) for t, *rest in zip(*(v[0].tolist() for v in columns(shape)), strict=True)]], 6
    )
    tree, same = draw_tree(shape, law, dice()), draw_tree(other, law, dice())
    assert torch.equal(tree.tokens[:, 1:], same.tokens[:, 1:])


def columns(tree):
    return tree.tokens, tree.parent, tree.depth, tree.logprob


@settings(max_examples=30, deadline=None)
@cases
def test_prefixes_and_rows_stay_sampled_trees(case, budget, temperature, seed):
    tree = drawn(*case, budget, temperature, seed)
    whole = tree.rows(torch.arange(tree.batch_size))
    assert_same(whole, tree)
    cut = tree.prefix(max(budget - 1, 1))
    cut.validate()
    probs = torch.full((*cut.tokens.shape, 50), 1 / 50)
    for accept in FAST.values():
        accept(cut, at_every_node(probs), 4, dice())


@pytest.mark.parametrize(("weights", "width"), [([0.5, 0.3, 0.2], 3), ([0.6, 0.39, 0.01, 0.0], 2)])
def test_race_orders_as_draws_without_replacement(weights, width):
    count = 20_000
    law = {
        order: math.prod(
            weights[k] / (sum(weights) - sum(weights[j] for j in order[:i])) for i, k in enumerate(order)
        )
        for order in itertools.permutations([k for k, w in enumerate(weights) if w > 0], width)
    }
    rows = torch.tensor(weights, dtype=torch.float64).expand(count, -1)
    seen = Counter(map(tuple, dice().order(rows, torch.full((count,), width), width).tolist()))
    assert set(seen) <= set(law)
    statistic = sum((seen[order] - count * p) ** 2 / (count * p) for order, p in law.items())
    assert statistic < chi2.ppf(1 - 1e-4, len(law) - 1)


def test_a_generator_makes_a_round_repeatable():
    law = as_law(draft_rows(3), batch=50)
    target = Target(1.0, VOCAB)

    def round_of(seed):
        thrown = dice(seed)
        tree = draw_tree(shape_of(SHAPES["unbalanced"], 50), law, thrown)
        return accept_traversal(tree, at_every_node(target_rows(tree, target)), 3, thrown)

    assert_same(round_of(1), round_of(1))
    assert not torch.equal(round_of(1).tokens, round_of(2).tokens)


@settings(max_examples=50, deadline=None)
@cases
def test_the_drafting_law(case, budget, temperature, seed):
    proposal, _ = case
    batch = torch.ones(proposal.batch_size)
    options = {"top_ks": batch.long() * 2, "top_ps": batch * 0.9, "min_ps": batch * 0.05}
    for chosen in ({}, options, *({name: value} for name, value in options.items())):
        law = drafting_law(proposal, batch * temperature, **chosen)
        assert law.logprobs.exp().sum(-1).allclose(torch.ones(()))
        assert (law.logprobs.diff(dim=-1).nan_to_num(0.0) <= 0).all()
        kept = law.logprobs.isfinite()
        assert kept[..., 0].all()
        within = (proposal.logprobs / temperature).softmax(-1) * kept
        assert law.logprobs.exp().allclose(within / within.sum(-1, keepdim=True), atol=1e-5)
        if "top_ks" in chosen:
            assert (kept.sum(-1) <= 2).all()


def test_top_p_keeps_the_token_that_crosses_it():
    proposal = DraftProposal(torch.arange(4)[None, None], torch.tensor([[[0.4, 0.3, 0.2, 0.1]]]).log())
    for top_p, kept in [(0.39, 1), (0.41, 2), (0.69, 2), (0.71, 3), (1.0, 4)]:
        law = drafting_law(proposal, torch.ones(1), top_ps=torch.tensor([top_p]))
        assert int(law.logprobs.isfinite().sum()) == kept


class Settling:
    """Dice that record the law of the path's end and choose it themselves, then record the bonus's."""

    def __init__(self, ends):
        self.ends, self.seen = ends, []

    def draw(self, weights):
        self.seen.append(weights)
        return self.ends if len(self.seen) == 1 else weights.argmax(-1)


@settings(max_examples=60, deadline=None)
@given(
    shapes=st.lists(
        st.integers(0, 5).flatmap(lambda n: st.tuples(*(st.integers(0, i) for i in range(n)))),
        min_size=1,
        max_size=3,
    ),
    seed=st.integers(0, 999),
    kept=st.integers(2, VOCAB),
)
@pytest.mark.parametrize("rule", FAST)
def test_each_request_of_a_ragged_batch_as_by_the_reference(rule, shapes, seed, kept):
    """Given the drawn tree: the law of (last node of the path, bonus token), every request by itself."""
    shapes = [list(parents) for parents in shapes if all(parents.count(p) <= kept for p in parents)] or [[]]
    budget = 1 + max(map(len, shapes))
    nodes = []
    for parents in shapes:
        own = [(0, -1, 0, 0.0)]
        for slot, parent in enumerate(parents, start=1):
            own.append((slot, parent, own[parent][2] + 1, -float(slot)))
        nodes.append(own)
    shape = collate(nodes, budget)
    law = as_law(draft_rows(5, seed=seed), batch=len(shapes), kept=kept)
    tree = draw_tree(shape, law, dice(seed))
    target = Target(1.0, VOCAB, seed=seed)
    probs = target_rows(tree, target)

    found = [{} for _ in shapes]
    for end in range(budget):
        settling = Settling(torch.full((len(shapes),), end))
        FAST[rule](tree, at_every_node(probs), 5, settling)
        chances, bonus = settling.seen
        for b, of_request in enumerate(found):
            row = bonus[b] / bonus[b].sum()
            of_request.update({(end, token): float(chances[b, end] * row[token]) for token in range(VOCAB)})

    for b, parents in enumerate(shapes):
        size = len(parents) + 1
        lists = [column[b, :size].tolist() for column in columns(tree)[:3]]
        rows = [target(path) for path in node_paths(*lists[:2])]

        def run(dice, lists=lists, rows=rows):
            path, tokens = REFERENCES[rule](*lists, law_rows(law), rows, dice)
            return path[-1], tokens[-1]

        expected = {key: 0.0 for key in found[b]} | plain_law_of(run)
        assert found[b] == pytest.approx(expected, abs=1e-10)

    compiled, tensor = (at_start(tree, at_every_node(probs), 2) for _ in range(2))
    try_children(compiled, tree, rule == "traversal")
    try_children_tensor(tensor, tree, rule == "traversal")
    for name, value in vars(compiled).items():
        assert value.allclose(getattr(tensor, name), atol=1e-12), name


@settings(max_examples=40, deadline=None)
@given(parents=st.lists(st.integers(0, 9), max_size=9))
def test_post_order(parents):
    parents = [parent % (slot + 1) for slot, parent in enumerate(parents)]

    def visit(node):
        below = [visit(slot) for slot, parent in enumerate(parents, start=1) if parent == node]
        return [*itertools.chain(*below), node]

    shape = shape_of(parents)
    assert post_order(shape).tolist() == [visit(0)]
    padded = collate([list(zip(*(column[0].tolist() for column in columns(shape)), strict=True))], 12)
    size = len(parents) + 1
    assert post_order(padded).tolist() == [[*visit(0), *range(size, 12)]]


@pytest.mark.parametrize("rule", FAST)
def test_top_k_trees_are_refused(rule):
    shape = shape_of(SHAPES["star"])
    with pytest.raises(ValueError, match=f"{rule} is exact only for trees whose tokens were drawn"):
        FAST[rule](shape, at_every_node(torch.full((1, 4, VOCAB), 0.25)), 1, dice())


@pytest.mark.parametrize("seed", range(4))
def test_more_nodes_and_later_decisions_commit_more(seed):
    """Traversal >= rejection >= the first path of the tree alone, on average over the draws."""
    parents = [0, 1, 0, 2, 1]  # a chain of 2 first, side branches behind
    target, law = Target(1.0, VOCAB, seed=seed), as_law(draft_rows(3, seed=seed))
    one_path = mean_length(fast_law("rejection", [0, 1], law, target))
    rejection = mean_length(fast_law("rejection", parents, law, target))
    traversal = mean_length(fast_law("traversal", parents, law, target))
    assert one_path + 0.05 < rejection < traversal + 1e-12


@pytest.mark.parametrize("accept", [accept_rejection, accept_traversal])
def test_nothing_waits_for_the_device(accept):
    """Meta tensors have shapes but no values to read."""
    batch, depth, kept, budget, vocab = 2, 3, 6, 8, 11

    def meta(*shape, dtype=torch.int64):
        return torch.empty(shape, dtype=dtype, device="meta")

    proposal = DraftProposal(meta(batch, depth, kept), meta(batch, depth, kept, dtype=torch.float32))
    law = drafting_law(proposal, meta(batch, dtype=torch.float32), top_ks=meta(batch))
    tree = draw_tree(build_tree(drawable(proposal, law), meta(batch), budget), law, RandomDice())
    accepted = accept(
        tree, at_every_node(meta(batch, budget, vocab, dtype=torch.float32)), depth, RandomDice()
    )
    assert accepted.tokens.shape == accepted.path.shape == (batch, depth + 1)
