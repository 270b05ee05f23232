import dataclasses

import pytest
from tiny_data import spec_block_config
from tiny_heads import eagle_config, head_config

from jetspec_sglang.drafters.contract import DrafterSpec
from jetspec_sglang.drafters.head_config import CorrectorConfig
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


def test_spec_says_the_truth_of_each_kind():
    causal = DrafterSpec.of_head(head_config(), 3, 4)
    assert (causal.name, causal.conditioning, causal.causal) == ("causal_parallel", "marginal", True)
    assert (causal.block_length, causal.forwards_per_round, causal.mask_token_id) == (4, 1, 3)
    whole = DrafterSpec.of_head(head_config(causal=False), 3, 4)
    assert (whole.name, whole.conditioning, whole.causal) == ("diffusion", "marginal", False)
    assert (whole.block_length, whole.forwards_per_round) == (5, 1)
    corrector = CorrectorConfig(kind="gru", rank=4, state_size=4, candidates=8)
    corrected = DrafterSpec.of_head(head_config(corrector=corrector), 3, 4)
    assert (corrected.name, corrected.conditioning, corrected.causal) == ("causal_parallel", "path", True)
    assert (corrected.block_length, corrected.forwards_per_round) == (4, 1)
    by_path = DrafterSpec.of_head(eagle_config(), 3, 4)
    assert (by_path.name, by_path.conditioning) == ("autoregressive", "path")
    assert (by_path.block_length, by_path.forwards_per_round, by_path.mask_token_id) == (4, 3, None)
    blocks = DrafterSpec.of_head(spec_block_config(), 3, 4)
    assert (blocks.name, blocks.conditioning, blocks.mask_token_id) == ("spec_block", "path", 3)
    assert (blocks.block_length, blocks.forwards_per_round) == (4, 2)  # blocks of two positions


def test_spec_is_checked_and_frozen():
    spec = DrafterSpec.of_head(head_config(), 3, 4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.causal = False
    with pytest.raises(ValueError, match="block_length is 1"):
        DrafterSpec.of_head(head_config(), 0, 4)


@pytest.mark.parametrize(
    ("head", "slots", "rows"),
    [
        (head_config(), [2, 3, 4], 4),
        (head_config(causal=False), [5, 5, 5], 5),
        (eagle_config(), [1, 9, 17], 8),
        (spec_block_config(), [3, 3, 24], 24),
    ],
    ids=lambda value: getattr(value, "drafter", ""),
)
def test_scratch_that_drafting_takes(head, slots, rows):
    """A causal block is cut, a bidirectional one is not; others draft from 8 nodes a depth, and
    blocks of later forwards overwrite those before."""
    assert [head.slots(depth) for depth in (1, 2, 3)] == slots
    assert head.rows(3) == rows
