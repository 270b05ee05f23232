"""The enumeration itself is held: each mistake known to be made in these rules must show up as a wrong law."""

import pytest
import torch
from enumerating_dice import law_of
from law_cases import Target, committed_tokens, target_rows, total_variation
from sampled_cases import FAST, VOCAB, as_law, draft_rows, fast_law, reference_law, shape_of

from jetspec_sglang.tree import accept_reference, accept_sampled, draw_tree, given

WRONG = 1e-3
PARENTS = [0, 0, 0, 1, 1, 2]
LAW = as_law(draft_rows(2))

pytestmark = pytest.mark.parametrize("rule", FAST)


@pytest.fixture
def target():
    return Target(1.0, VOCAB)


def distance(law, target):
    return total_variation(law, target, 3)


def fast_law_of(rule, change, target):
    """The law of a round whose tree is changed between drawing and acceptance."""

    def run(dice, rows):
        tree = draw_tree(shape_of(PARENTS, rows), LAW.rows(torch.zeros(rows, dtype=torch.int64)), dice)
        tree = change(tree)
        return committed_tokens(FAST[rule](tree, given(target_rows(tree, target)), 2, dice))

    return law_of(run)


def replaced(tree, **columns):
    return type(tree)(**{**vars(tree), **columns})


def test_the_rules_themselves_are_right(rule, target):
    assert distance(fast_law_of(rule, lambda tree: tree, target), target) < 1e-9
    assert distance(reference_law(rule, PARENTS, LAW, target), target) < 1e-9


def sorted_by_probability(tree):
    """Siblings put into the order of their probability, most probable first, instead of their draws."""
    order = torch.arange(tree.budget).expand_as(tree.parent).clone()
    for b in range(tree.batch_size):
        for node in range(tree.budget):
            family = (tree.parent[b] == node).nonzero()[:, 0]
            order[b, family] = family[tree.pick[b, family].argsort()]
    # The subtrees stay where they are: rows are shared, so any child could have them.
    return replaced(tree, tokens=tree.tokens.gather(1, order), pick=tree.pick.gather(1, order))


def top_k_as_draws(tree):
    """The most probable candidates of each row, handed in as if they had been drawn."""
    turn = (tree.parent[:, :, None] == tree.parent[:, None, :]).tril(-1).sum(-1)
    pick = torch.where(tree.parent >= 0, turn, 0)
    batch, row = torch.arange(tree.batch_size)[:, None], (tree.depth - 1).clamp(min=0)
    tokens = torch.where(tree.parent >= 0, tree.candidates[batch, row, pick], tree.tokens)
    return replaced(tree, tokens=tokens, pick=pick)


def pruned_by_what_was_drawn(tree):
    """The last drawn slot is given up if its token is an unlikely one."""
    step = tree.draft[torch.arange(tree.batch_size), tree.depth[:, -1] - 1, tree.pick[:, -1]]
    gone = (step < 0.3)[:, None] & (torch.arange(tree.budget) == tree.budget - 1)
    return replaced(
        tree,
        tokens=tree.tokens.where(~gone, -1),
        parent=tree.parent.where(~gone, -1),
        depth=tree.depth.where(~gone, 0),
    )


def hotter_than_drawn(tree):
    """q is reported at another temperature than it was drawn at."""
    return replaced(tree, draft=(tree.draft.log() / 2).softmax(-1))


@pytest.mark.parametrize(
    "change", [sorted_by_probability, top_k_as_draws, pruned_by_what_was_drawn, hotter_than_drawn]
)
def test_trees_that_are_not_what_they_say(rule, change, target):
    assert distance(fast_law_of(rule, change, target), target) > WRONG


def forget_renormalisation(monkeypatch):
    def without(q, token):
        return [0.0 if other == token else x for other, x in enumerate(q)]

    monkeypatch.setattr(accept_reference, "without", without)


def forget_removal(monkeypatch):
    monkeypatch.setattr(accept_reference, "without", lambda q, token: q)


def forget_residual(monkeypatch):
    """The law of the next token is not reduced by what a rejected child had its chance of."""
    monkeypatch.setattr(accept_reference, "positive_part", lambda p, q: p)


@pytest.mark.parametrize("mutate", [forget_renormalisation, forget_removal, forget_residual])
def test_references_that_forget_a_step(rule, mutate, target, monkeypatch):
    mutate(monkeypatch)
    assert distance(reference_law(rule, PARENTS, LAW, target), target) > WRONG


def test_bonus_from_the_target_instead_of_what_is_missing(rule, target, monkeypatch):
    monkeypatch.setattr(accept_sampled, "bonus_weights", lambda law, target, node: target)
    assert distance(fast_law(rule, PARENTS, LAW, target), target) > WRONG


def test_bonus_from_the_draft_tokens_only(rule, target, monkeypatch):
    """The factor that stands for all tokens that the drafter never draws is left out."""
    right = accept_sampled.bonus_weights

    def on_candidates(law, target, node):
        law.factor = torch.zeros_like(law.factor)
        return right(law, target, node)

    monkeypatch.setattr(accept_sampled, "bonus_weights", on_candidates)
    cut_off = as_law(draft_rows(2), kept=3)
    assert distance(fast_law(rule, PARENTS, cut_off, target), target) > WRONG
