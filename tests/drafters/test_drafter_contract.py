"""The served drafter keeps the contract: everything but the engine below it is real, and no model is loaded."""

import inspect
from types import SimpleNamespace

import pytest
from tiny_data import head_config
from torch import nn

from jetspec_sglang.drafters.contract import DrafterFactory, DrafterSpec, ServedDrafter
from jetspec_sglang.drafters.registry import DRAFTERS, ENTRY_POINT_GROUP
from jetspec_sglang.tree.registry import Registry


def parameters(function):
    return [(p.name, p.kind) for p in inspect.signature(function).parameters.values() if p.name != "self"]


@pytest.fixture
def drafter(monkeypatch):
    from jetspec_sglang.drafters.sglang_models import causal_parallel

    model = SimpleNamespace(layers=[], share_embedding=lambda embedding: None)
    bundle = SimpleNamespace(draft_worker=object(), draft_model_runner=object(), draft_model=model)
    monkeypatch.setattr(causal_parallel, "build_draft_tp_worker", lambda **_: bundle)
    target = SimpleNamespace(
        model=SimpleNamespace(get_input_embeddings=nn.Identity, lm_head=nn.Identity()),
        model_config=SimpleNamespace(context_len=64),
    )
    return DRAFTERS.get("causal_parallel")(
        head=head_config(),
        width=2,
        depth=3,
        server_args=None,
        gpu_id=0,
        nccl_port=0,
        target_worker=SimpleNamespace(model_runner=target),
        attention_backend="any",
    )


@pytest.mark.parametrize("name", list(DRAFTERS))
def test_signatures_are_those_of_the_contract(name):
    factory = DRAFTERS.get(name)
    assert parameters(factory) == parameters(DrafterFactory.__call__)
    for method in ("append_context", "propose"):
        assert parameters(getattr(factory, method)) == parameters(getattr(ServedDrafter, method))


def test_a_drafter_has_what_the_worker_uses(drafter):
    assert isinstance(drafter, ServedDrafter)
    assert drafter.spec == DrafterSpec.of_head(head_config(), block_length=4)
    assert drafter.block_length == 4


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
