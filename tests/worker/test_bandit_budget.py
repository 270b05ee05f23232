"""What the bandit's place in the worker makes of planned, cut and finished rounds."""

from dataclasses import replace

import pytest
import torch

from jetspec_sglang.bandit_budget import BanditBudget
from jetspec_sglang.round_budget import Note
from jetspec_sglang.stage_clock import FinishedRound
from jetspec_sglang.tree import TokenTree
from jetspec_sglang.tree.budget import Plan, RoundShape
from jetspec_sglang.tree_settings import TreeSettings

OWN = TreeSettings(8, 5, 4, "optimal", "accum_logp", "match", "causal_parallel")
ROOTS = TokenTree.roots(torch.tensor([7, 8]))


def finished(planned: int, paths: list[list[int]], gap: float | None = 0.002) -> FinishedRound:
    """A round of 10 ms in which the nodes of `paths` were accepted, of `planned` ones a request."""
    plan, shape = Plan(planned, planned - 1), RoundShape(len(paths), planned, planned - 1, 64)
    on_path = torch.zeros(len(paths), planned + 1, dtype=torch.bool)
    for row, path in enumerate(paths):
        on_path[row, path] = True
    tensors = () if planned == 1 else (torch.zeros(0), torch.zeros(0), on_path)
    slots = 0 if planned == 1 else 8
    return FinishedRound({"verify": 0.008, "commit": 0.002}, gap, Note(plan, shape, slots), tensors)


def known(budget: BanditBudget) -> dict:
    return budget.report()["known_by_batch_and_nodes"].get("2", {})


def test_plain_rounds_draft_nothing_and_others_as_deep_as_their_width_allows():
    budget = BanditBudget(8)
    assert budget.plan([OWN, OWN], 64) == Plan(1, 0)
    for _ in range(2):
        budget.learn(finished(1, [[0], [0]]))
    assert budget.plan([OWN, OWN], 64) == Plan(2, 1, probe=True)
    assert budget.plan([replace(OWN, budget=1)] * 2, 64) == Plan(1, 0)


def test_trees_are_cut_to_the_plan():
    budget = BanditBudget(8)
    assert budget.cut(Plan(4, 3), ROOTS, [OWN, OWN], 64) == 1, "trees found in text may be smaller"
    fields = ROOTS.tokens, ROOTS.parent, ROOTS.depth, ROOTS.logprob
    wide = TokenTree(*(field.repeat(1, 8) for field in fields), ROOTS.size)
    assert budget.cut(Plan(4, 3), wide, [OWN, OWN], 64) == 4


def test_a_round_teaches_what_each_width_would_have_brought():
    budget = BanditBudget(8)
    for width in (1, 2, 3, 4):
        for _ in range(2):  # the first of each does not count
            budget.learn(finished(width, [[0], [0]]))
    assert known(budget)["4"] == {
        "tok_s": pytest.approx(2 / 0.012, abs=0.1),
        "ms": 12.0,
        "rounds_remembered": 1,
    }
    for _ in range(3000):
        budget.learn(finished(4, [[0, 1, 3], [0, 2]]))
    tokens = {width: row["tok_s"] * row["ms"] / 1000 for width, row in known(budget).items()}
    assert tokens["4"] == pytest.approx(5, rel=0.01)


def test_behind_a_prefill_the_usual_gap_counts():
    budget = BanditBudget(8)
    for _ in range(3):
        budget.learn(finished(1, [[0], [0]]))
    budget.learn(finished(1, [[0], [0]], gap=None))
    assert known(budget)["1"]["ms"] == 12


def test_trees_that_were_found_smaller_than_planned_count_for_the_plan():
    budget = BanditBudget(8)
    plan, shape = Plan(8, 5), RoundShape(2, 1, 5, 64)
    for _ in range(2):
        budget.learn(FinishedRound({"verify": 0.01}, 0.0, Note(plan, shape, 0), ()))
    assert known(budget)["8"] == {"tok_s": 200, "ms": 10, "rounds_remembered": 1}


def test_the_report_counts_rounds_by_what_was_verified():
    budget = BanditBudget(8)
    for nodes, tried in ((1, False), (1, False), (4, True)):
        budget.chosen(RoundShape(3, nodes, nodes - 1, 64), tried)
    report = budget.report()
    assert report["rounds_by_batch_and_nodes"] == {"2": {"1": 2, "4": 1}}
    assert report["tries"] == 1
