"""Scoring policies by their formulas, and how text names them."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_cases import NEG_INF, assert_same, proposals

from jetspec_sglang.tree import (
    EXPANSIONS,
    DraftProposal,
    Scores,
    build_tree,
    registry,
    scoring_policy,
)
from jetspec_sglang.tree.build_heap import build_heap
from jetspec_sglang.tree.build_tensor import build_tensor
from jetspec_sglang.tree.registry import Registry, RegistryError
from jetspec_sglang.tree.score import score_rows

LOGPROBS = torch.tensor([[[-0.1, -3.0, -4.0, NEG_INF], [-1.0, -1.1, -1.2, -1.3]]])
ENTROPY = torch.tensor([[0.5, 2.0]])
TWO_LEVELS = range(2)


def scores(text, logprobs=LOGPROBS, levels=TWO_LEVELS):
    policy = scoring_policy(text)
    return policy(logprobs, ENTROPY if policy.needs_entropy else None, levels)


def test_accum_logp_is_the_log_probabilities():
    assert scores("accum_logp") == Scores(LOGPROBS, None)
    assert not scoring_policy("accum_logp").needs_entropy


def test_entropy_is_the_bonus_alone():
    edges, bonus = scores("entropy")
    assert edges.tolist() == [[[0, 0, 0, NEG_INF], [0, 0, 0, 0]]]
    assert bonus is ENTROPY
    assert scoring_policy("entropy").needs_entropy


def test_hybrid_adds_alpha_times_the_entropy():
    edges, bonus = scores("hybrid:alpha=0.5")
    assert edges is LOGPROBS
    assert bonus.tolist() == [[0.25, 1.0]]
    assert scores("hybrid").bonus.tolist() == ENTROPY.tolist()
    assert [scoring_policy(text).needs_entropy for text in ("hybrid", "hybrid:alpha=0")] == [True, False]


def keys_on_path(text):
    """Key of each node of the rank-0 chain, as the reference computes it."""
    proposal = DraftProposal(torch.zeros(1, 2, 4, dtype=torch.int64), LOGPROBS, ENTROPY)
    rows = score_rows(scoring_policy(text), proposal, TWO_LEVELS)
    edges = rows.edges[0, :, 0].cumsum(0)
    return (edges + rows.bonus[0]).tolist()


def test_a_bonus_is_not_carried_on():
    assert keys_on_path("hybrid:alpha=2") == pytest.approx([-0.1 + 2 * 0.5, -0.1 - 1.0 + 2 * 2.0])
    assert keys_on_path("entropy") == [0.5, 2.0]


def test_an_uncertain_row_comes_right_after_its_parent():
    """Row 1 has the larger key, so that the heap goes down before it goes on to the siblings."""
    proposal = DraftProposal(torch.arange(8).view(1, 2, 4), LOGPROBS, ENTROPY)
    anchors = torch.tensor([9])
    tree = build_tree(proposal, anchors, 7, scoring="entropy")
    assert tree.depth[0].tolist() == [0, 1, 2, 2, 2, 2, 1]
    eager = build_tree(proposal, anchors, 7, scoring="entropy", expansion="eager")
    assert eager.depth[0].tolist() == [0, 1, 1, 1, 2, 2, 2]
    assert tree.logprob[0, :3].tolist() == pytest.approx([0, -0.1, -1.1])


@pytest.mark.parametrize("expansion", EXPANSIONS)
@settings(max_examples=60, deadline=None)
@given(case=proposals(), budget=st.integers(1, 24))
def test_alpha_zero_is_accum_logp_node_for_node(expansion, case, budget):
    proposal, anchors = case
    plain, zero = (
        build_tree(proposal, anchors, budget, scoring=text, expansion=expansion)
        for text in ("accum_logp", "hybrid:alpha=0")
    )
    assert_same(plain, zero)
    # A bonus of zero goes through other code than none.
    rows = score_rows(scoring_policy("accum_logp"), proposal, range(proposal.depth))
    rows = rows._replace(bonus=torch.zeros_like(proposal.entropy))
    for build in (build_heap, build_tensor):
        assert_same(plain, build(rows, anchors, budget, sizes=None, eager=expansion == "eager"))


@settings(max_examples=60, deadline=None)
@given(case=proposals(), budget=st.integers(1, 24), scoring=st.sampled_from(["entropy", "hybrid:alpha=3"]))
def test_logprob_stays_the_drafters(case, budget, scoring):
    """Whatever ranks the nodes, a node's logprob is its parent's plus that of its candidate."""
    proposal, anchors = case
    tree = build_tree(proposal, anchors, budget, scoring=scoring)
    for b, size in enumerate(tree.size.tolist()):
        for node in range(1, size):
            parent, row = int(tree.parent[b, node]), int(tree.depth[b, node]) - 1
            rank = proposal.token_ids[b, row].tolist().index(int(tree.tokens[b, node]))
            assert tree.logprob[b, node] == tree.logprob[b, parent] + proposal.logprobs[b, row, rank]


def kept(text, logprobs, levels):
    return scores(text, logprobs, levels).edges.isfinite().sum(-1)


@pytest.mark.parametrize("beta", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("gap", [0.0, 1.0, 2.5])
def test_top2gap_keeps_few_candidates_where_the_drafter_is_sure(beta, gap):
    leads = [0.0, 0.5, 1.0, 2.0, 30.0]
    logprobs = -torch.tensor([[[0.1 + lead * (rank > 0) for rank in range(7)] for lead in leads]])
    expected = [max(1, round(7 / (1 + math.exp(beta * (lead - gap))))) for lead in leads]
    assert kept(f"top2gap:beta={beta},gap={gap}", logprobs, range(5)).tolist() == [expected]


def test_top2gap_on_edges_of_its_domain():
    sure = torch.tensor([[[-0.1, NEG_INF, NEG_INF], [NEG_INF, NEG_INF, NEG_INF]]])
    assert kept("top2gap", sure, TWO_LEVELS).tolist() == [[1, 0]]
    assert scores("top2gap", LOGPROBS[:, :, :1]).edges.tolist() == LOGPROBS[:, :, :1].tolist()
    proposal = DraftProposal(torch.arange(8).view(1, 2, 4), LOGPROBS)
    tree = build_tree(proposal, torch.tensor([9]), 9, scoring="top2gap:beta=50,gap=1")
    assert tree.tokens[0].tolist() == [
        9,
        0,
        4,
        5,
        6,
        7,
        -1,
        -1,
        -1,
    ]  # one child at depth 1, all of them below


@pytest.fixture
def profile(tmp_path):
    file = tmp_path / "profile.json"
    file.write_text(json.dumps({"depth_rank_accept": [[0.6, 0.1, 0.02, 0.01], [0.01, 0.0], []]}))
    return file


def test_rank_histogram_keeps_what_was_worth_it(profile):
    logprobs = -torch.ones(2, 4, 4)
    assert kept(f"rank_histogram:profile={profile}", logprobs, range(4)).tolist() == [[3, 1, 1, 4]] * 2
    assert kept(f"rank_histogram:profile={profile},threshold=0.1", logprobs, range(4))[0].tolist() == [
        2,
        1,
        1,
        4,
    ]
    assert kept(f"rank_histogram:profile={profile},threshold=0", logprobs, range(4))[0].tolist() == [4] * 4
    # One level for all rows, as a path-conditioned drafter asks.
    assert kept(f"rank_histogram:profile={profile}", logprobs, range(0, 1))[0].tolist() == [3] * 4
    narrow = kept(f"rank_histogram:profile={profile}", logprobs[:, :, :2], range(4))
    assert narrow[0].tolist() == [2, 1, 1, 2]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"depth_rank_accept": 3}',
        '{"depth_rank_accept": []}',
        '{"depth_rank_accept": [[2]]}',
    ],
)
def test_a_profile_that_is_none_is_refused(tmp_path, text):
    file = tmp_path / "broken.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"'rank_histogram': profile .*broken.json' is not JSON of the form"):
        scoring_policy(f"rank_histogram:profile={file}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "magic",
            "unknown scoring policy 'magic'; known: accum_logp, entropy, hybrid, rank_histogram, top2gap",
        ),
        ("", "unknown scoring policy ''; known"),
        ("hybrid:beta=1", "'hybrid' has no key 'beta'; its keys are alpha"),
        ("accum_logp:alpha=1", "'accum_logp' has no key 'alpha'; it has no keys"),
        ("hybrid:alpha=much", "alpha is 'much', not a number"),
        ("hybrid:alpha=-1", "alpha is -1.0, but must be a finite number >= 0"),
        ("hybrid:alpha=nan", "alpha is nan, but must be"),
        ("top2gap:beta=inf", "beta is inf, but must be"),
        ("hybrid:alpha", "'alpha' is not of the form key=value"),
        ("hybrid:alpha=", "'alpha=' is not of the form key=value"),
        ("hybrid:alpha=1,alpha=2", "alpha is given twice"),
        ("rank_histogram", "'rank_histogram' needs profile=…"),
        ("rank_histogram:profile=no/such.json", "profile 'no/such.json' can't be read"),
    ],
)
def test_text_that_names_no_policy_is_refused_in_one_sentence(text, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")) as caught:
        scoring_policy(text)
    assert "\n" not in str(caught.value)


def test_look_ups_are_cached():
    assert scoring_policy("hybrid:alpha=0.5") is scoring_policy("hybrid:alpha=0.5")


class Deep:
    """A third party's policy, of whole-number settings: rank decides, and depth pays."""

    needs_entropy = False

    def __init__(self, pay: int, name: str = "x"):
        self.pay = pay

    def __call__(self, logprobs, entropy, levels):
        edges = -torch.arange(logprobs.shape[-1]).expand_as(logprobs).float()
        bonus = torch.tensor([float(self.pay * level) for level in levels]).expand(logprobs.shape[:2])
        return Scores(edges, bonus)


def test_other_packages_add_policies(monkeypatch):
    point = type("Point", (), {"name": "deep", "value": f"{__name__}:Deep"})
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == "jetspec.scoring" else [])
    ours = {"hybrid": "jetspec_sglang.tree.score_policies:Hybrid"}
    table = Registry("scoring policy", ours, entry_point_group="jetspec.scoring")
    monkeypatch.setattr("jetspec_sglang.tree.score.SCORING", table)
    scoring_policy.cache_clear()
    proposal = DraftProposal(torch.arange(6).view(1, 3, 2), -torch.ones(1, 3, 2))
    tree = build_tree(proposal, torch.tensor([9]), 5, scoring="deep:pay=1,name=y")
    assert tree.depth[0].tolist() == [0, 1, 2, 3, 3]
    with pytest.raises(ValueError, match=r"'deep': pay is '1\.5', not a whole number"):
        scoring_policy("deep:pay=1.5")
    scoring_policy.cache_clear()

    taken = type("Point", (), {"name": "hybrid", "value": "theirs:Hybrid"})
    monkeypatch.setattr(registry, "entry_points", lambda group: [taken])
    with pytest.raises(RegistryError, match="'hybrid' is registered twice"):
        list(Registry("scoring policy", ours, entry_point_group="jetspec.scoring"))


def test_scores_are_fp32_like_the_log_probabilities():
    for text in ("accum_logp", "entropy", "hybrid:alpha=0.3", "top2gap:beta=2"):
        edges, bonus = scores(text)
        assert edges.dtype == torch.float32, text
        assert bonus is None or bonus.dtype == torch.float32, text
    assert np.float32(0.3) * np.float32(2.0) == scores("hybrid:alpha=0.3").bonus[0, 1]
