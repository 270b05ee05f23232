"""Published heads on disk: every spelling that is read, every fault that is named."""

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_data import head_config

from jetspec_sglang.drafters.causal_head import CausalParallelHead
from jetspec_sglang.drafters.checkpoint import (
    HeadError,
    check_fits_target,
    default_target_layer_ids,
    load_head_tensors,
    read_head_config,
    write_head,
)


@pytest.fixture
def head(tmp_path):
    torch.manual_seed(0)
    config = head_config()
    write_head(tmp_path, config, CausalParallelHead(config).state_dict(), "# card\n")
    return tmp_path


def edit(folder, **changes):
    """Set keys of config.json; None removes one; a dict under dflash_config is merged."""
    path = folder / "config.json"
    raw = json.loads(path.read_text())
    for part, edits in ((raw["dflash_config"], changes.pop("dflash_config", {})), (raw, changes)):
        for key, value in edits.items():
            part.pop(key, None)
            if value is not None:
                part[key] = value
    path.write_text(json.dumps(raw))


def test_round_trip(head):
    assert read_head_config(head) == head_config()
    tensors = load_head_tensors(head)
    model = CausalParallelHead(head_config())
    model.load_state_dict(tensors)
    assert all(tensor.dtype == torch.bfloat16 for tensor in tensors.values())


def test_transformers_reads_the_config(head):
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(head)
    assert config.model_type == "qwen3"
    assert config.dflash_config["causal_head"] is config.dflash_config["causal"] is config.is_causal is True
    assert (config.block_size, config.num_target_layers) == (5, 4)


@pytest.mark.parametrize(
    ("top", "causal", "causal_head", "expected"),
    [
        (True, None, None, True),
        (None, True, None, True),
        (None, None, True, True),
        (None, None, None, False),
        (False, True, True, False),
        (None, False, True, False),
        (True, False, False, True),
    ],
)
def test_causality_in_every_spelling(head, top, causal, causal_head, expected):
    edit(head, is_causal=top, dflash_config={"causal": causal, "causal_head": causal_head})
    assert read_head_config(head).causal is expected


def test_taps_and_mask_fall_back_to_the_top_level(head):
    edit(
        head,
        dflash_config={"target_layer_ids": None, "mask_token_id": None},
        target_layer_ids=[1, 2],
        mask_token_id=9,
    )
    config = read_head_config(head)
    assert (config.target_layer_ids, config.mask_token_id) == ((1, 2), 9)
    edit(head, dflash_config={"target_layer_ids": [0, 3]})
    assert read_head_config(head).target_layer_ids == (0, 3)


def test_unlisted_taps_are_the_published_ones(head):
    assert default_target_layer_ids(36, 5) == (1, 9, 17, 25, 33)
    assert default_target_layer_ids(40, 1) == (20,)
    edit(head, dflash_config={"target_layer_ids": None})
    assert read_head_config(head).target_layer_ids == (1, 1)


def test_rope_theta_of_either_transformers_generation(head):
    edit(head, rope_theta=None, rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    assert read_head_config(head).rope_theta == 5e5


def test_head_dim_defaults_to_an_even_split(head):
    edit(head, head_dim=None)
    assert read_head_config(head).head_dim == 8


def test_subfolder(head):
    assert read_head_config(f"{head.parent}::{head.name}") == head_config()
    with pytest.raises(HeadError, match="no subfolder nothing"):
        read_head_config(f"{head}::nothing")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_size": None}, "key block_size is missing"),
        ({"num_target_layers": None}, "key num_target_layers is missing"),
        ({"hidden_size": None}, "key hidden_size is missing"),
        ({"rope_theta": None}, "key rope_theta is missing"),
        ({"dflash_config": {"mask_token_id": None}}, "key mask_token_id is missing"),
        ({"block_size": 1}, "block_size is 1"),
        ({"block_size": "many"}, "block_size: .*integer"),
        ({"dflash_config": {"target_layer_ids": [0, 4]}}, r"target_layer_ids \[4\] out of range"),
        ({"dflash_config": {"target_layer_ids": [-1]}}, r"target_layer_ids \[-1\] out of range"),
        ({"dflash_config": {"target_layer_ids": []}}, "target_layer_ids is empty"),
        ({"dflash_config": {"mask_token_id": 96}}, "mask_token_id 96 outside the vocabulary"),
        ({"num_key_value_heads": 3}, "cannot share"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope scaling"),
        ({"attention_bias": True}, "attention_bias is not supported"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention layers"),
        ({"dflash_config": {"target_hidden_size": 64}}, "target_hidden_size differs"),
    ],
)
def test_faults_of_the_config_are_named(head, changes, message):
    edit(head, **changes)
    with pytest.raises(HeadError, match=message):
        read_head_config(head)


def test_missing_files_and_bad_json(head, tmp_path):
    with pytest.raises(HeadError, match="no folder"):
        read_head_config(tmp_path / "nowhere")
    (head / "model.safetensors").unlink()
    with pytest.raises(HeadError, match=r"no file .*model\.safetensors"):
        load_head_tensors(head)
    (head / "config.json").write_text("{")
    with pytest.raises(HeadError, match=r"config\.json is not valid JSON"):
        read_head_config(head)
    (head / "config.json").write_text("[]")
    with pytest.raises(HeadError, match="holds a list"):
        read_head_config(head)
    (head / "config.json").unlink()
    with pytest.raises(HeadError, match=r"no file .*config\.json"):
        read_head_config(head)


def test_faults_of_the_tensors_are_named(head):
    path = head / "model.safetensors"
    tensors = load_file(path)

    def check(changed, message):
        save_file(changed, path)
        with pytest.raises(HeadError, match=message):
            load_head_tensors(head)

    check({k: v for k, v in tensors.items() if k != "norm.weight"}, r"missing tensors norm\.weight")
    check(tensors | {"lm_head.weight": torch.zeros(2, 2)}, r"unexpected tensors lm_head\.weight")
    check(tensors | {"fc.weight": torch.zeros(32, 96)}, r"fc\.weight is \[32, 96\], expected \[32, 64\]")
    path.write_bytes(b"not tensors")
    with pytest.raises(HeadError, match="not a readable safetensors file"):
        load_head_tensors(head)


def test_a_misshapen_head_is_not_written(tmp_path):
    with pytest.raises(HeadError, match="missing tensors"):
        write_head(tmp_path, head_config(), {}, "")


def test_head_and_target_must_fit():
    target = {"hidden_size": 32, "vocab_size": 96, "num_hidden_layers": 4}
    check_fits_target(head_config(), SimpleNamespace(**target))
    for key, mine in (("hidden_size", 32), ("vocab_size", 96), ("num_hidden_layers", 4)):
        with pytest.raises(HeadError, match=f"{mine}, target has {key} 7"):
            check_fits_target(head_config(), SimpleNamespace(**target | {key: 7}))
