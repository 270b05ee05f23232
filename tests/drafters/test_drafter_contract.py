"""Served drafters keep the contract: everything but the engine below them is real, and no model is loaded."""

import inspect
from types import SimpleNamespace

import pytest
from tiny_data import spec_block_config
from tiny_heads import eagle_config, head_config
from torch import nn

from jetspec_sglang.drafters.contract import (
    DrafterFactory,
    DrafterSpec,
    MarginalDrafter,
    PathDrafter,
    ServedDrafter,
)
from jetspec_sglang.drafters.head_config import CorrectorConfig
from jetspec_sglang.drafters.registry import DRAFTERS, ENTRY_POINT_GROUP
from jetspec_sglang.drafters.sglang_models import common
from jetspec_sglang.tree.registry import Registry


def parameters(function):
    return [(p.name, p.kind) for p in inspect.signature(function).parameters.values() if p.name != "self"]


HEADS = {
    "causal_parallel": head_config(),
    "diffusion": head_config(causal=False),
    "autoregressive": eagle_config(),
    "spec_block": spec_block_config(),
    "with a corrector": head_config(corrector=CorrectorConfig(kind="mlp", rank=4, candidates=8)),
}
PROTOCOLS = {"marginal": MarginalDrafter, "path": PathDrafter}


@pytest.fixture(params=HEADS)
def drafter(request, monkeypatch):
    factory = DRAFTERS.get(HEADS[request.param].drafter)
    model = SimpleNamespace(
        layers=[],
        share=lambda embedding, lm_head: None,
        get_hot_token_id=lambda: None,
    )
    bundle = SimpleNamespace(draft_worker=object(), draft_model_runner=object(), draft_model=model)
    monkeypatch.setattr(common, "build_draft_tp_worker", lambda **_: bundle)
    target = SimpleNamespace(
        model=SimpleNamespace(get_input_embeddings=nn.Identity, lm_head=nn.Identity()),
        model_config=SimpleNamespace(context_len=64, num_hidden_layers=4),
    )
    return factory(
        head=HEADS[request.param],
        width=2,
        depth=3,
        server_args=None,
        gpu_id=0,
        nccl_port=0,
        target_worker=SimpleNamespace(model_runner=target),
        attention_backend="any",
    )


def test_the_table_of_drafters():
    assert {head.drafter for head in HEADS.values()} <= set(DRAFTERS)


@pytest.mark.parametrize("name", HEADS)
def test_signatures_are_those_of_the_contract(name):
    factory = DRAFTERS.get(HEADS[name].drafter)
    assert parameters(factory) == parameters(DrafterFactory.__call__)
    conditioning = DrafterSpec.of_head(HEADS[name], 3, 4).conditioning
    asked = {"marginal": MarginalDrafter.propose, "path": PathDrafter.expander}[conditioning]
    for method in (ServedDrafter.append_context, ServedDrafter.slots, asked):
        assert parameters(getattr(factory, method.__name__)) == parameters(method)


def test_a_drafter_has_what_the_worker_uses(drafter):
    assert isinstance(drafter, PROTOCOLS[drafter.spec.conditioning])
    assert drafter.spec == DrafterSpec.of_head(drafter.head, 3, 4)
    assert drafter.slots(3) == drafter.head.slots(3)


def test_a_drafter_that_lacks_something_is_no_served_drafter(drafter):
    del drafter.runner
    assert not isinstance(drafter, ServedDrafter)


def test_an_installed_package_adds_its_drafter(tmp_path, monkeypatch):
    (tmp_path / "their_package.py").write_text("class Theirs: ...\n")
    info = tmp_path / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[jetspec.drafters]\ntheirs = their_package:Theirs\n")
    monkeypatch.syspath_prepend(tmp_path)
    table = Registry("drafter", {}, entry_point_group=ENTRY_POINT_GROUP)
    assert list(table) == ["theirs"]
    assert table.get("theirs").__name__ == "Theirs"
