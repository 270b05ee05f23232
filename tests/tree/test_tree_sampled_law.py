"""Rejection and traversal commit by the target's law: every draw of the tree and every outcome of its acceptance
is gone through, by the references and by the batched code, and the law is compared exactly."""

import pytest
import torch
from law_cases import Target, committed_tokens, target_rows, top_k, top_p, total_variation
from sampled_cases import (
    FAST,
    SHAPES,
    VOCAB,
    as_law,
    draft_rows,
    fast_law,
    law_of,
    reference_law,
    shape_of,
    tensor_law,
)

from jetspec_sglang.tree import DraftProposal, build_tree, drafting_law, draw_tree, drawable, given

EXACT = 1e-9
WAYS = {"reference": reference_law, "compiled": fast_law, "tensor": tensor_law}

pytestmark = pytest.mark.parametrize("rule", FAST)


def rows_for(parents, **options):
    return draft_rows(max(depth_of(parents), 1), **options)


def depth_of(parents):
    return int(shape_of(parents).depth.max())


def distance(law, target, parents):
    return total_variation(law, target, depth_of(parents) + 1)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape(rule, way, shape, temperature):
    parents, target = SHAPES[shape], Target(temperature, VOCAB)
    law = as_law(rows_for(parents, temperature=temperature))
    assert distance(WAYS[way](rule, parents, law, target), target, parents) < EXACT


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("restrict", [top_k(1), top_k(2), top_k(3), top_p(0.6), top_p(0.9)])
@pytest.mark.parametrize("kept", [2, 3, VOCAB])
def test_restricted_targets_and_drafts_cut_off(rule, way, kept, restrict):
    """The two supports may overlap in any way, down to a parent that uses up all of its candidates."""
    parents = [0, 0, 1, 2, 2]
    for seed in range(2):
        target = Target(1.0, VOCAB, restrict=restrict, seed=seed)
        law = as_law(rows_for(parents, seed=seed), kept=kept)
        assert distance(WAYS[way](rule, parents, law, target), target, parents) < EXACT


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("parents", [[0, 1], [0, 0, 0, 0], [0, 0, 1, 1, 1]])
def test_a_draft_that_is_right(rule, way, parents):
    """p = q: nothing is missing after a rejection, because nothing can be rejected."""
    target = Target(1.0, VOCAB)
    rows = torch.tensor([target(()), target((0,))], dtype=torch.float64)[: depth_of(parents)]
    law = as_law(rows)
    found = WAYS[way](rule, parents, law, target)
    assert distance(found, target, parents) < 1e-6  # q went through fp32
    assert sum(weight for tokens, weight in found.items() if len(tokens) == 1) < 1e-6


@pytest.mark.parametrize("way", WAYS)
def test_nothing_in_common(rule, way):
    """No draft can be accepted, and the target's law is drawn from untouched."""
    target = Target(1.0, VOCAB, restrict=lambda p: torch.tensor([0.25, 0.75, 0, 0], dtype=torch.float64))
    rows = torch.tensor([[0, 0, 0.4, 0.6]], dtype=torch.float64)
    law = WAYS[way](rule, [0, 0], as_law(rows), target)
    assert law == pytest.approx({(0,): 0.25, (1,): 0.75})


def test_depth_can_be_cut(rule):
    parents, target = SHAPES["chain"], Target(1.0, VOCAB)
    law = fast_law(rule, parents, as_law(rows_for(parents)), target, max_depth=1)
    assert max(map(len, law)) == 2
    assert distance(law, target, parents) < EXACT


@pytest.mark.parametrize("temperature", [0.5, 1.0])
@pytest.mark.parametrize("budget", [3, 5, 6])
def test_as_served(rule, temperature, budget):
    """A drafter's rows with the request's own parameters, the shape that the builder grows over them."""
    logits = draft_rows(2, seed=3).log()
    token_ids = logits.argsort(-1, descending=True)[None]
    logprobs = logits.sort(-1, descending=True).values[None].float()
    proposal = DraftProposal(token_ids, logprobs)
    law = drafting_law(proposal, torch.tensor([temperature]), top_ks=torch.tensor([3]))
    shape = build_tree(drawable(proposal, law), torch.zeros(1, dtype=torch.int64), budget)
    target = Target(temperature, VOCAB, restrict=top_k(3))

    def run(dice, rows):
        index = torch.zeros(rows, dtype=torch.int64)
        tree = draw_tree(shape.rows(index), law.rows(index), dice)
        return committed_tokens(FAST[rule](tree, given(target_rows(tree, target)), 2, dice))

    found = law_of(run)
    assert total_variation(found, target, 3) < EXACT


def test_probabilities_need_not_sum_to_one(rule):
    parents, target = SHAPES["bushy"], Target(1.0, VOCAB)
    law = as_law(rows_for(parents))

    def run(scale):
        def once(dice, rows):
            tree = draw_tree(shape_of(parents, rows), law.rows(torch.zeros(rows, dtype=torch.int64)), dice)
            return committed_tokens(FAST[rule](tree, given(scale * target_rows(tree, target)), 2, dice))

        return law_of(once)

    assert run(0.25) == pytest.approx(run(1.0), abs=1e-12)
