"""Grafting in the worker: whose nodes compete how, and what is learnt from the texts."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jetspec_sglang.drafting import GraftedTrees, RetrievedTrees
from jetspec_sglang.stage_clock import HostClock
from jetspec_sglang.tree import DraftProposal, TokenTree, build_tree
from jetspec_sglang.tree.budget import Plan
from jetspec_sglang.tree.chances import CELLS, claims, with_chances
from jetspec_sglang.tree.tally import CERTAIN, IMPOSSIBLE, Tally
from jetspec_sglang.tree_settings import TreeSettings

SETTINGS = TreeSettings(
    budget=6,
    depth=5,
    width=4,
    expansion="optimal",
    scoring="accum_logp",
    acceptance="match",
    drafter="causal_parallel",
    graft="suffix",
)
FULL = Plan(6, 3)


def head_tree(seed: int, requests: int, budget: int = 6) -> TokenTree:
    torch.manual_seed(seed)
    logprobs, tokens = (2 * torch.randn(requests, 3, 9)).log_softmax(-1).sort(-1, descending=True)
    return build_tree(DraftProposal(tokens, logprobs), torch.full((requests,), 90), budget)


class Heads:
    worker, runners, slots, taps = None, (), 4, True

    def __init__(self, tree: TokenTree) -> None:
        self.tree = tree
        self.taken: list[bool] = []

    def take_in(self, committed, wait: bool) -> None:
        self.taken.append(wait)

    def trees(self, plan, anchors, slots, settings, batch) -> TokenTree:
        return self.tree if plan.depth else TokenTree.roots(anchors)


class Retrieval:
    """Hands out a chain of certain tokens, and says that texts have grown by `actual`."""

    def __init__(self, chain: list[int], actual: list[int]) -> None:
        self.chain, self.actual = chain, actual
        self.taken = 0
        self.grown: list[np.ndarray] = []

    def append_context(self, committed) -> None:
        self.taken += 1

    def branches(self, anchors, batch, budgets, depths, shown) -> TokenTree:
        self.grown = [np.array(self.actual if most > 1 else [], np.int64) for most in budgets]
        size = 1 + len(self.chain)
        sizes = torch.tensor([min(size, most) for most in budgets])
        slots = torch.arange(size).expand(len(anchors), size)
        tokens = torch.tensor([90, *self.chain]).expand(len(anchors), size)
        return TokenTree(tokens, slots - 1, slots, slots * -0.001, sizes).shortened(sizes)

    def report(self) -> dict:
        return {"bytes": 1}


def batch_of(*rids: str):
    return SimpleNamespace(reqs=[SimpleNamespace(rid=rid) for rid in rids])


def grafted(heads: Heads, retrieval: Retrieval) -> GraftedTrees:
    clock = HostClock()
    return GraftedTrees(heads, RetrievedTrees(retrieval, clock, None), clock)


def paths(tree: TokenTree, request: int) -> set[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for slot in range(1, int(tree.size[request])):
        found.append((*found[int(tree.parent[request, slot])], int(tree.tokens[request, slot])))
    return set(found[1:])


def test_what_is_nearly_certain_goes_before_the_heads_nodes():
    source = grafted(Heads(head_tree(0, 1)), Retrieval([50, 51, 52, 53], []))
    tree = source.trees(FULL, torch.tensor([90]), None, [SETTINGS], batch_of("a"))
    tree.validate()
    assert tree.budget == 6
    assert tree.depth[0].tolist()[:5] == [0, 1, 2, 3, 4]
    assert tree.tokens[0].tolist()[:5] == [90, 50, 51, 52, 53]


def test_a_request_may_do_without():
    heads = Heads(head_tree(1, 2))
    source = grafted(heads, Retrieval([50, 51], []))
    settings_ = [SETTINGS, replace(SETTINGS, graft="none")]
    tree = source.trees(FULL, torch.full((2,), 90), None, settings_, batch_of("a", "b"))
    assert paths(tree, 1) == paths(heads.tree, 1)
    assert tree.logprob[1].tolist() == pytest.approx(heads.tree.logprob[1].tolist())
    assert (50, 51) in paths(tree, 0)


def test_each_request_keeps_its_own_budget():
    source = grafted(Heads(head_tree(2, 2)), Retrieval([50, 51, 52], []))
    settings_ = [SETTINGS, replace(SETTINGS, budget=2)]
    tree = source.trees(FULL, torch.full((2,), 90), None, settings_, batch_of("a", "b"))
    assert tree.size.tolist() == [6, 2]


def test_a_round_without_a_draft_still_retrieves():
    source = grafted(Heads(head_tree(3, 1)), Retrieval([50, 51], []))
    tree = source.trees(Plan(1, 0), torch.tensor([90]), None, [SETTINGS], batch_of("a"))
    assert tree.tokens.tolist() == [[90, 50, 51]]


def test_committed_tokens_go_to_texts_at_once_and_to_the_head_when_it_drafts():
    heads, retrieval = Heads(head_tree(3, 1)), Retrieval([], [])
    source = grafted(heads, retrieval)
    source.take_in(None, wait=True)
    assert (heads.taken, retrieval.taken) == ([True], 1)


def test_a_head_that_is_always_wrong_loses_its_place():
    """It is sure of itself, but the text never becomes what it says."""
    heads, retrieval = Heads(head_tree(4, 1)), Retrieval([50], [50, 7])
    source = grafted(heads, retrieval)
    first = source.trees(FULL, torch.tensor([90]), None, [SETTINGS], batch_of("a"))
    for _ in range(100):
        last = source.trees(FULL, torch.tensor([90]), None, [SETTINGS], batch_of("a"))
    own = [path for path in paths(last, 0) if path[0] != 50]
    assert len(own) == 4
    before, after = (tree.logprob[0, 1:].exp().sum() - tree.logprob[0, 1].exp() for tree in (first, last))
    assert after < 0.2 * before


def test_requests_are_not_taken_for_one_another():
    retrieval = Retrieval([50], [50, 7])
    source = grafted(Heads(head_tree(5, 1)), retrieval)
    for rid in ("a", "b", "c", "d"):  # each is there for one round, so nothing is known of what it became
        source.trees(FULL, torch.tensor([90]), None, [SETTINGS], batch_of(rid))
    assert source._tally.seen.sum() == 0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 3), st.integers(1, 12))
def test_a_tally_that_knows_nothing_takes_the_heads_word(seed, requests, budget):
    tree = head_tree(seed, requests, budget)
    claim, cell = claims(tree)
    assert cell.min() >= 0
    assert cell.max() < CELLS
    same = with_chances(tree, claim, cell, Tally(CELLS))
    same.validate()
    sure = (claim < CERTAIN) & (claim > IMPOSSIBLE)
    if sure[:, 1:].all():
        assert torch.allclose(same.logprob, tree.logprob, atol=1e-4)
