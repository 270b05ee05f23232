import dataclasses

import pytest
from tiny_data import head_config

from jetspec_sglang.drafters.contract import DrafterSpec
from jetspec_sglang.drafters.registry import DRAFTERS
from jetspec_sglang.tree import registry
from jetspec_sglang.tree.registry import Registry, RegistryError


def test_factories_are_imported_on_demand():
    table = Registry("thing", {"join": "os.path:join", "broken": "no.such.module:x"})
    import os.path

    assert table.get("join") is os.path.join
    assert list(table) == ["broken", "join"]
    with pytest.raises(ModuleNotFoundError):
        table.get("broken")


def test_unknown_and_duplicate_names_list_the_known_ones():
    table = Registry("thing", {"a": "m:x", "b": "m:y"})
    with pytest.raises(RegistryError, match="unknown thing 'c'; known: a, b"):
        table.get("c")
    with pytest.raises(RegistryError, match=r"'a' is registered twice.*known: a, b"):
        table.add("a", "m:z")
    with pytest.raises(RegistryError, match="not of the form"):
        table.add("d", "module")


def test_entry_points_join_the_table(monkeypatch):
    point = type("Point", (), {"name": "theirs", "value": "os.path:split"})
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == "some.group" else [])
    table = Registry("thing", {"ours": "os.path:join"}, entry_point_group="some.group")
    assert list(table) == ["ours", "theirs"]
    taken = Registry("thing", {"theirs": "os.path:join"}, entry_point_group="some.group")
    with pytest.raises(RegistryError, match="registered twice"):
        list(taken)


def test_the_table_of_drafters():
    assert "causal_parallel" in DRAFTERS


def test_spec_of_a_head():
    spec = DrafterSpec.of_head(head_config())
    assert (spec.conditioning, spec.forwards_per_round, spec.block_length) == ("marginal", 1, 5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.causal = False
    with pytest.raises(ValueError, match="block_length is 1"):
        DrafterSpec.of_head(head_config(), block_length=1)
