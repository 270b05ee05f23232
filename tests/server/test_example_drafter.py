"""The drafter of `examples/drafter`, installed as any package is: it is found by name, serves, and changes no text."""

import importlib.util
import tomllib
from pathlib import Path

import pytest
import requests
import torch
from asking import greedy

from jetspec_sglang.drafters.contract import MarginalDrafter
from jetspec_sglang.drafters.registry import ENTRY_POINT_GROUP
from jetspec_sglang.tree import DraftProposal, build_tree

EXAMPLE = Path(__file__).parents[2] / "examples" / "drafter"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("cooled_drafter", EXAMPLE / "cooled_drafter.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def depths(example, temperature: float) -> list[int]:
    """Of the tree of 12 nodes from rows at this temperature."""
    logits = torch.randn(1, 6, 40, generator=torch.Generator().manual_seed(2)) * 2
    logprobs, ids = logits.log_softmax(-1).topk(8)
    proposal = example.cooled(DraftProposal(ids, logprobs), temperature)
    assert proposal.logprobs.exp().sum(-1) == pytest.approx(logprobs.exp().sum(-1))
    assert (proposal.logprobs.diff(dim=-1) <= 0).all()
    tree = build_tree(proposal, torch.tensor([3]), 12, width=8, depth=6)
    return tree.depth[0].tolist()


def test_a_lower_temperature_makes_deeper_trees(example):
    assert max(depths(example, 0.5)) > max(depths(example, 1.0)) > max(depths(example, 3.0))


def test_it_is_asked_as_the_contract_says(example):
    given = [name for name in MarginalDrafter.propose.__annotations__ if name != "return"]
    assert list(example.CooledDrafter.propose.__annotations__)[:2] == given[:2]
    assert example.CooledDrafter.propose.__kwdefaults__ == MarginalDrafter.propose.__kwdefaults__


@pytest.mark.server
def test_an_installed_one_serves_the_targets_text(models, serve, tmp_path):
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    info = tmp_path / "cooled_drafter-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1.0\n")
    points = project["entry-points"][ENTRY_POINT_GROUP]
    lines = [f"[{ENTRY_POINT_GROUP}]", *(f"{name} = {what}" for name, what in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    server = serve(
        *("--model-path", models["target"], "--skip-tokenizer-init", "--dtype", "float32"),
        *("--max-total-tokens", "1000", "--random-seed", "1"),
        *("--speculative-algorithm", "JETSPEC", "--speculative-draft-model-path", models["head"]),
        *("--speculative-num-draft-tokens", "8", "--jetspec-drafter", *points),
        env={"PYTHONPATH": f"{EXAMPLE}:{tmp_path}"},
    )
    [ids] = torch.randint(5, 500, (1, 20), generator=torch.Generator().manual_seed(1)).tolist()
    drafted = greedy(server, ids, 24)
    assert drafted["output_ids"] == greedy(server, ids, 24, budget=1)["output_ids"]
    state = requests.get(server.url + "/server_info", timeout=60).json()["internal_states"][0]
    assert state["jetspec"]["verified_nodes"] > 0
