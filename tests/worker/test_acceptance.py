"""Rules side by side in one batch, each request with its own sampling parameters, and the target's whole law."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from sampling_cases import SETTINGS, VOCAB, info, law

from jetspec_sglang import acceptance, round_trees, row_parts, target_law
from jetspec_sglang.acceptance import accept_each, in_effect
from jetspec_sglang.round_trees import build_trees, candidates
from jetspec_sglang.tree import DraftProposal, SampledTree, build_tree
from jetspec_sglang.tree_settings import TreeSettings

SERVER = TreeSettings(
    budget=12,
    depth=3,
    width=4,
    expansion="optimal",
    scoring="accum_logp",
    acceptance="traversal",
    drafter="x",
)


@pytest.mark.parametrize("head", [3, 256])
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_the_law_is_what_sglang_samples_from(setting, head, monkeypatch):
    monkeypatch.setattr(target_law, "HEAD", head)
    torch.manual_seed(0)
    logits = torch.randn(2, 3, VOCAB) * 1.5
    both = {"temperature": 1.0, "top_k": 1 << 30, "top_p": 1.0, "min_p": 0.0} | setting
    parameters = info(**{name: (value, value) for name, value in both.items()})
    found = target_law.target_law(logits, parameters)(None).double()
    found /= found.sum(-1, keepdim=True)
    for row, of_node in zip(logits.flatten(0, 1), found.flatten(0, 1), strict=True):
        assert of_node.numpy() == pytest.approx(law(row, **setting).numpy(), abs=1e-6)


def test_the_law_is_the_same_in_parts(monkeypatch):
    """Each row keeps its own request's parameters, wherever a part begins."""
    torch.manual_seed(0)
    logits = torch.randn(3, 3, VOCAB)
    asked = info((0.5, 1.0, 2.0), (3, 1 << 30, 5), (1.0, 0.6, 0.9), (0.1, 0.0, 0.05))
    whole = target_law.target_law(logits, asked)
    nodes = torch.tensor([[2, 0], [1, 1], [0, 2]])
    expected = [whole(None), whole(nodes)]
    for rows in (1, 2, 4, 5):
        monkeypatch.setattr(row_parts, "PART_BYTES", rows * VOCAB * 4)
        found = [whole(None), whole(nodes)]
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)


def test_a_sorted_head_is_used_only_where_the_rest_is_cut_off():
    flat, peaked = torch.full((1, 1000), 1e-3), torch.zeros(1, 1000).index_fill(1, torch.arange(10), 0.1)
    nothing = info()
    assert target_law._columns(peaked, torch.tensor([0.9]), nothing) == target_law.HEAD
    assert target_law._columns(flat, torch.tensor([0.9]), nothing) == 1000
    assert target_law._columns(torch.cat([flat, peaked]), torch.tensor([0.9, 0.9]), nothing) == 1000
    assert target_law._columns(flat, torch.tensor([0.9]), info(max_top_k=40)) == 40


def params(**own):
    plain = {"top_k": 1 << 30, "frequency_penalty": 0, "presence_penalty": 0, "repetition_penalty": 1}
    return SimpleNamespace(**plain | {"min_new_tokens": 0} | own)


def test_only_requests_that_sample_freely_have_drawn_trees():
    assert in_effect(SERVER, params()) == SERVER
    for own in ({"top_k": 1}, {"frequency_penalty": 0.1}, {"repetition_penalty": 1.1}, {"min_new_tokens": 3}):
        assert in_effect(SERVER, params(**own)) == replace(SERVER, acceptance="match")


def proposal(batch: int) -> DraftProposal:
    torch.manual_seed(1)
    logprobs, tokens = torch.randn(batch, 3, VOCAB).log_softmax(-1).sort(-1, descending=True)
    return DraftProposal(tokens, logprobs)


def test_drawn_and_deterministic_trees_share_a_batch():
    settings = [replace(SERVER, acceptance=rule) for rule in ("match", "rejection", "match", "traversal")]
    settings[3] = replace(settings[3], budget=5)
    rows, anchors = proposal(4), torch.arange(4)
    # The first request is greedy, as SGLang says it.
    tree = build_trees(
        rows, anchors, settings, 12, info((1.0, 0.7, 1.0, 1.0), (1, 1 << 30, 5, 4), (1.0,) * 4, (0.0,) * 4)
    )
    assert isinstance(tree, SampledTree)
    tree.validate()
    assert tree.size.tolist() == [12, 12, 12, 5]
    expected = build_tree(rows, anchors, 12, width=4)
    for row in (0, 2):
        for name in ("tokens", "parent", "depth"):
            assert torch.equal(getattr(tree, name)[row], getattr(expected, name)[row]), name
    allowed = rows.token_ids[3, :, :4]
    for slot in range(1, 5):
        assert tree.tokens[3, slot] in allowed[tree.depth[3, slot] - 1], "outside the request's top-k"


def test_no_more_candidates_than_needed():
    assert candidates([replace(SERVER, acceptance="match")]) is None
    assert candidates([replace(SERVER, acceptance="match"), SERVER]) == round_trees.CANDIDATES


class MostProbable:
    """Dice without luck."""

    def draw(self, weights):
        return weights.argmax(-1)

    def order(self, weights, counts, width):
        return weights.topk(width).indices


def test_each_request_as_if_it_were_alone(monkeypatch):
    monkeypatch.setattr(acceptance, "RandomDice", MostProbable)
    monkeypatch.setattr(round_trees, "RandomDice", MostProbable)
    rules = ["match", "traversal", "rejection", "traversal", "match", "rejection"]
    settings = [replace(SERVER, acceptance=rule) for rule in rules]
    batch = len(rules)
    parameters = ((1.0, 0.5, 1.0, 2.0, 1.0, 0.7), (1, 1 << 30, 3, 1 << 30, 1, 4), (1.0,) * 6, (0.0,) * 6)
    rows, anchors, positions = proposal(batch), torch.arange(batch), torch.zeros(batch, 12, dtype=torch.int64)
    logits = torch.randn(batch, 12, VOCAB) * 4
    single = torch.tensor([False] * 4 + [True, False])

    tree = build_trees(rows, anchors, settings, 12, info(*parameters))
    together = accept_each(tree, logits, positions, info(*parameters), 3, single, rules)
    assert together.lengths[4] == 1
    for row in range(batch):
        one = torch.tensor([row])
        own = info(*((values[row],) for values in parameters))
        tree_alone = build_trees(rows.rows(one), anchors[one], settings[row : row + 1], 12, own)
        assert torch.equal(tree_alone.tokens[0], tree.tokens[row])
        alone = accept_each(
            tree_alone, logits[one], positions[one], own, 3, single[one], rules[row : row + 1]
        )
        for name in ("path", "lengths", "tokens"):
            assert torch.equal(getattr(together, name)[row], getattr(alone, name)[0]), (row, name)
