"""Settings of single requests: taken over, refused in one sentence, and built side by side."""

from dataclasses import replace

import pytest
import torch

from jetspec_sglang.round_trees import build_trees, grow_trees
from jetspec_sglang.tree import DraftProposal, build_tree, build_tree_by_path
from jetspec_sglang.tree_settings import TreeSettings

SERVER = TreeSettings(
    budget=16, depth=5, width=8, expansion="optimal", scoring="accum_logp", acceptance="match", drafter="x"
)


def test_a_request_without_wishes_has_what_the_server_has():
    for params in (None, {}, {"thinking_budget": 3}, {"jetspec": {}}):
        assert SERVER.problem(params) is None
        assert SERVER.of_request(params) == SERVER


def test_a_request_changes_what_it_names():
    params = {"jetspec": {"budget": 4, "expansion": "eager", "scoring": "hybrid:alpha=0.5", "trace": True}}
    assert SERVER.problem(params) is None
    own = SERVER.of_request(params)
    assert (own.budget, own.expansion, own.scoring, own.trace) == (4, "eager", "hybrid:alpha=0.5", True)
    assert (own.depth, own.width) == (SERVER.depth, SERVER.width)


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        ({"budget": 17}, "from 1 to 16"),
        ({"budget": 0}, "from 1 to 16"),
        ({"width": 9}, "from 1 to 8"),
        ({"depth": True}, "from 1 to 5"),
        ({"budget": "8"}, "whole number"),
        ({"expansion": "greedy"}, "optimal, eager"),
        ({"acceptance": "typical"}, "match, rejection, traversal"),
        ({"scoring": "luck"}, "accum_logp"),
        ({"scoring": 3}, "accum_logp"),
        ({"scoring": "rank_histogram:profile=/etc/passwd"}, "reads a file of the server"),
        ({"trace": 1}, "true or false"),
        ({"nodes": 4}, "unknown key nodes"),
        ("16", "give an object"),
    ],
    ids=str,
)
def test_what_cannot_be_had_is_refused_in_one_sentence(asked, part):
    text = SERVER.problem({"jetspec": asked})
    assert part in text
    assert text.endswith(".")
    assert "\n" not in text
    assert SERVER.of_request({"jetspec": asked}) == SERVER  # SGLang runs a refused request once


@pytest.mark.parametrize("params", ["x", 5, [1], True, "", []], ids=repr)
def test_custom_params_must_be_an_object(params):
    assert SERVER.problem(params).endswith("give an object.")
    assert SERVER.of_request(params) == SERVER


@pytest.mark.parametrize(
    "asked", [{"expansion": "eager"}, {"acceptance": "rejection"}, {"conditioning": "marginal"}], ids=str
)
def test_a_drafter_by_path_has_fewer_choices(asked):
    server = replace(SERVER, conditioning="path")
    said = server.problem({"jetspec": asked})
    assert (
        "give one of optimal." in said or "give one of match." in said or "unknown key conditioning" in said
    )
    assert server.problem({"jetspec": {"expansion": "optimal", "acceptance": "match", "budget": 3}}) is None


def test_different_trees_side_by_side_are_those_of_single_requests():
    torch.manual_seed(0)
    logprobs, _ = torch.randn(5, 4, 8).log_softmax(-1).sort(-1, descending=True)
    proposal = DraftProposal(torch.arange(8).expand(5, 4, 8).contiguous(), logprobs, torch.rand(5, 4))
    anchors = torch.arange(5)
    wishes = [
        {},
        {"budget": 3},
        {"expansion": "eager", "width": 3},
        {"scoring": "hybrid:alpha=2"},
        {"depth": 2, "budget": 9},
    ]
    settings = [SERVER.of_request({"jetspec": asked}) for asked in wishes]
    together = build_trees(proposal, anchors, settings, SERVER.budget, info=None)
    together.validate()
    for row, own in enumerate(settings):
        one = torch.tensor([row])
        alone = build_tree(
            proposal.rows(one),
            anchors[one],
            own.budget,
            width=own.width,
            depth=min(own.depth, 4),
            scoring=own.scoring,
            expansion=own.expansion,
        )
        size = int(alone.size[0])
        assert int(together.size[row]) == size
        assert together.tokens[row, :size].tolist() == alone.tokens[0, :size].tolist()
        assert together.parent[row, :size].tolist() == alone.parent[0, :size].tolist()
        assert (together.tokens[row, size:] == -1).all()


class ByPath:
    """A drafter whose rows are a function of the drafted path."""

    frontier = 3
    VOCAB = 11

    def expander(self, slots, batch, *, width: int, depth: int, budget: int, entropy: bool = False):
        assert slots.shape == (5, 7)
        seeds: list[torch.Tensor] = []

        def expand(tokens: torch.Tensor, parents: torch.Tensor, depth: int) -> DraftProposal:
            above = seeds[-1].gather(1, parents) if depth else torch.zeros_like(tokens)
            seeds.append(above * 31 + tokens + 1)
            angle = seeds[-1][..., None] * torch.arange(1, self.VOCAB + 1)
            logprobs = (2 * angle.double().sin()).log_softmax(-1).float()
            best = logprobs.topk(width)
            spread = -(logprobs.exp() * logprobs).sum(-1) if entropy else None
            return DraftProposal(best.indices, best.values, spread)

        return expand


def test_trees_grown_side_by_side_are_those_of_single_requests():
    anchors = torch.arange(5)
    wishes = [{}, {"budget": 3}, {"width": 3}, {"scoring": "hybrid:alpha=2"}, {"depth": 2, "budget": 9}]
    settings = [SERVER.of_request({"jetspec": asked}) for asked in wishes]
    drafter, scratch = ByPath(), torch.zeros(5, 7, dtype=torch.int64)
    together = grow_trees(drafter, anchors, scratch, None, settings, SERVER.budget, depth=4)
    together.validate()
    for row, own in enumerate(settings):
        alone = build_tree_by_path(
            drafter.expander(
                scratch, None, width=own.width, depth=own.depth, budget=own.budget, entropy=True
            ),
            anchors[row : row + 1],
            own.budget,
            width=own.width,
            depth=min(own.depth, 4),
            frontier=3,
            scoring=own.scoring,
        )
        size = int(alone.size[0])
        assert int(together.size[row]) == size
        assert together.tokens[row, :size].tolist() == alone.tokens[0, :size].tolist()
        assert together.parent[row, :size].tolist() == alone.parent[0, :size].tolist()
