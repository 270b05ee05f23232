"""`jetspec bench tree`: all builders on the same work, and numbers that add up."""

import itertools
import json

import pytest
import torch
from tree_cases import assert_same, collate
from typer.testing import CliRunner

from jetspec_sglang.bench import builders, interleave, peaked_proposal
from jetspec_sglang.cli import app
from jetspec_sglang.tree import ancestor_mask

BUILDERS = {
    "heap reference",
    "batched",
    "tensor",
    "tree + mask",
    "eager reference",
    "eager batched",
    "eager tensor",
}


def test_one_row_for_each_builder_and_case(tmp_path):
    file = tmp_path / "tree.json"
    sizes = ["--budgets", "4,9", "--batches", "1,2", "--width", "3", "--depth", "4", "--repeats", "1"]
    result = CliRunner().invoke(app, ["bench", "tree", *sizes, "--json", str(file)])
    assert result.exit_code == 0, result.output
    written = json.loads(file.read_text())
    assert {"processor", "cores", "torch"} <= set(written["machine"])
    assert {(row["builder"], row["budget"], row["batch"]) for row in written["rows"]} == {
        (name, budget, batch) for name in BUILDERS for budget in (4, 9) for batch in (1, 2)
    }
    assert all(row["us_per_request"] > 0 for row in written["rows"])


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--budgets", "many", "give whole numbers from 1"),
        ("--batches", "0", "give whole numbers from 1"),
        ("--device", "abacus", "can't be used here"),
        ("--json", "/nowhere/at/all.json", "There is no folder /nowhere/at"),
    ],
)
def test_what_cannot_be_measured_is_refused(option, value, said):
    result = CliRunner().invoke(app, ["bench", "tree", option, value])
    assert result.exit_code == 1
    assert said in result.output


def test_the_variants_do_the_same_work():
    """Compared in time, they must give the same trees."""
    run = builders(peaked_proposal(2, 5, 4), 20, "cpu")
    assert set(run) == BUILDERS
    for reference, others in {
        "heap reference": ("batched", "tensor"),
        "eager reference": ("eager batched", "eager tensor"),
    }.items():
        expected = collate(run[reference](), 20)
        assert expected.size.tolist() == [20, 20]
        for name in others:
            assert_same(run[name](), expected)
    mask = run["tree + mask"]()
    assert torch.equal(mask, ancestor_mask(run["batched"]()))


def test_every_variant_takes_its_turn_in_every_repeat():
    calls, ticks = [], itertools.count()
    median = interleave(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 2, clock=ticks.__next__
    )
    assert "".join(calls) == "ab" * 5
    assert median == {"a": 1, "b": 1}
