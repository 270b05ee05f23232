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
    check_head_files,
    default_target_layer_ids,
    load_head_tensors,
    read_head_config,
    write_head,
)
from jetspec_sglang.drafters.checkpoint_corrector import DOMINO_NAMES, PUBLISHED_CANDIDATES
from jetspec_sglang.drafters.head_config import CorrectorConfig


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


CORRECTED = {
    "gru": head_config(corrector=CorrectorConfig(kind="gru", rank=4, state_size=6, candidates=9)),
    "mlp": head_config(corrector=CorrectorConfig(kind="mlp", rank=4, candidates=9, skip=2)),
    "domino": head_config(
        causal=False,
        shifted=True,
        corrector=CorrectorConfig(kind="domino", rank=4, state_size=6, candidates=PUBLISHED_CANDIDATES),
    ),
    "treeflash": head_config(
        causal=False,
        corrector=CorrectorConfig(kind="treeflash", rank=32, candidates=PUBLISHED_CANDIDATES, skip=0),
    ),
}


@pytest.fixture(params=CORRECTED)
def corrected(request, tmp_path):
    torch.manual_seed(1)
    config = CORRECTED[request.param]
    write_head(tmp_path, config, CausalParallelHead(config).state_dict(), "# card\n")
    return tmp_path, config


def test_round_trip_with_a_path_corrector(corrected):
    folder, config = corrected
    assert read_head_config(folder) == config
    tensors = load_head_tensors(folder)
    CausalParallelHead(config).load_state_dict(tensors)
    assert any(name.startswith("path_corrector.") for name in tensors)
    check_head_files(folder)


def test_other_tools_find_the_plain_head(corrected):
    """Without the corrector's tensors and key, everything is there."""
    folder, config = corrected
    tensors = load_file(folder / "model.safetensors")
    theirs = ("path_corrector.", "ar_approximation.", *DOMINO_NAMES)
    kept = {n: t for n, t in tensors.items() if not n.startswith(theirs)}
    save_file(kept, folder / "model.safetensors")
    with pytest.raises(HeadError, match=r"missing tensors path_corrector\."):
        load_head_tensors(folder)
    edit(folder, dflash_config={"path_corrector": None, "projector_type": None}, treeflash_config=None)
    plain = config.model_copy(update={"corrector": None, "shifted": False})
    assert read_head_config(folder) == plain
    CausalParallelHead(plain).load_state_dict(load_head_tensors(folder))


def test_a_published_domino_head_is_read(tmp_path):
    """The keys of the authors' checkpoints and of SpecForge's configs, emb_dim at the top level, too."""
    config = CORRECTED["domino"]
    write_head(tmp_path, config, CausalParallelHead(config).state_dict(), "")
    published = json.loads((tmp_path / "config.json").read_text())["dflash_config"]
    assert {key: published[key] for key in published.keys() - {"causal", "causal_head"}} == {
        "mask_token_id": 3,
        "target_layer_ids": [0, 2],
        "projector_type": "domino",
        "pure_draft_prefix_len": 1,
        "emb_dim": 4,
        "gru_hidden_dim": 6,
        "shift_label": True,
    }
    shapes = {n: tuple(t.shape) for n, t in load_file(tmp_path / "model.safetensors").items()}
    assert {name: shapes[name] for name in DOMINO_NAMES} == {
        "prefix_gru.weight_ih_l0": (18, 32),
        "prefix_gru.weight_hh_l0": (18, 6),
        "embed_proj.0.weight": (4, 38),
        "embed_proj.2.weight": (96, 4),
    }
    edit(tmp_path, dflash_config={"emb_dim": None}, emb_dim=4)
    assert read_head_config(tmp_path) == config


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("gru", {"path_corrector": {"kind": "lstm", "rank": 4, "candidates": 9}}, "path_corrector: kind"),
        (
            "gru",
            {"path_corrector": {"kind": "gru", "rank": 4, "candidates": 9}},
            "gru and domino correctors need a state_size",
        ),
        ("gru", {"path_corrector": {"kind": "mlp", "rank": 4, "candidates": 9, "bias": 1}}, "bias: Extra"),
        ("gru", {"path_corrector": ["gru"]}, "path_corrector"),
        ("gru", {"projector_type": "domino"}, "path_corrector and projector_type name several"),
        (
            "gru",
            {"path_corrector": {"kind": "treeflash", "rank": 4, "candidates": 9}},
            "in its own format alone",
        ),
        ("mlp", {"path_corrector": {"kind": "mlp", "rank": 4, "candidates": 9, "skip": 4}}, "skips 4 depths"),
        ("domino", {"projector_type": "dspark"}, "projector_type 'dspark' is not supported"),
        ("domino", {"gru_hidden_dim": None}, "needs the key gru_hidden_dim"),
        ("domino", {"shift_label": "yes, please"}, "shifted"),
    ],
)
def test_faults_of_a_corrector_are_named(tmp_path, kind, changes, message):
    config = CORRECTED[kind]
    write_head(tmp_path, config, CausalParallelHead(config).state_dict(), "")
    edit(tmp_path, dflash_config=changes)
    with pytest.raises(HeadError, match=message):
        read_head_config(tmp_path)


def test_a_published_treeflash_head_is_read(tmp_path):
    """The keys and names of the authors' module."""
    config = CORRECTED["treeflash"]
    write_head(tmp_path, config, CausalParallelHead(config).state_dict(), "")
    raw = json.loads((tmp_path / "config.json").read_text())
    assert raw["architectures"] == ["TreeFlashDraftModel"]
    assert raw["treeflash_config"] == {"ar_approximation": "swiglu"}
    tensors = load_file(tmp_path / "model.safetensors")
    shapes = {n: list(t.shape) for n, t in tensors.items() if not n.startswith("model.layers.")}
    assert shapes == {
        "model.fc.weight": [32, 64],
        "model.hidden_norm.weight": [32],
        "model.norm.weight": [32],
        "ar_approximation.ug.weight": [96, 64],
        "ar_approximation.ug.bias": [96],
        "ar_approximation.d.weight": [32, 48],
        "ar_approximation.norm.weight": [32],
    }
    edit(tmp_path, treeflash_config=None, ar_approximation="swiglu")
    assert read_head_config(tmp_path) == config
    plain = {n: t for n, t in tensors.items() if n.startswith("model.")}
    save_file(plain, tmp_path / "model.safetensors")
    edit(tmp_path, ar_approximation=None, treeflash_config={"ar_approximation": None})
    assert read_head_config(tmp_path).corrector is None
    assert load_head_tensors(tmp_path).keys() == {n.removeprefix("model.") for n in plain}


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
