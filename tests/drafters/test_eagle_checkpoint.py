"""EAGLE-3 heads on disk: every layout they are published in, every fault that is named."""

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_heads import eagle_config

from jetspec_sglang.drafters.autoregressive_head import AutoregressiveHead
from jetspec_sglang.drafters.checkpoint import (
    HeadError,
    check_fits_target,
    check_head_files,
    load_head_tensors,
    read_head_config,
    write_head,
)

VOCABULARY = torch.arange(24) * 4 + 1  # draft token i is target token 4i + 1


def written(folder, **changes):
    torch.manual_seed(0)
    config = eagle_config(**changes)
    head = AutoregressiveHead(config)
    if config.maps_vocabulary:
        head.set_draft_vocabulary(VOCABULARY)
    write_head(folder, config, head.state_dict(), "# card\n")
    return folder


@pytest.fixture
def head(tmp_path):
    return written(tmp_path)


def edit(folder, **changes):
    """Set keys of config.json; None removes one."""
    path = folder / "config.json"
    raw = json.loads(path.read_text())
    for key, value in changes.items():
        raw.pop(key, None)
        if value is not None:
            raw[key] = value
    path.write_text(json.dumps(raw))


def rewrite(folder, rename=lambda name: name, add=(), pickled=False):
    """The weights under other names, with more tensors, or as `torch.save` writes them."""
    path = folder / "model.safetensors"
    tensors = {rename(name): tensor for name, tensor in load_file(path).items()} | dict(add)
    path.unlink()
    if pickled:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, path)


def assert_same_head(folder):
    """What is read computes what was written."""
    torch.manual_seed(0)
    expected = AutoregressiveHead(eagle_config())
    expected.set_draft_vocabulary(VOCABULARY)
    model = AutoregressiveHead(read_head_config(folder))
    model.load_state_dict(load_head_tensors(folder))
    for name, tensor in expected.state_dict().items():
        kept = tensor.bfloat16().float() if tensor.is_floating_point() else tensor
        assert torch.equal(model.state_dict()[name], kept), name
    assert model.token_ids(torch.tensor([0, 1, 23])).tolist() == [1, 5, 93]


def test_round_trip(head):
    assert read_head_config(head) == eagle_config()
    assert_same_head(head)
    check_head_files(head)


@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"rename": lambda name: name.replace("midlayer", "layers.0")},
        {"rename": lambda name: "model." + name.replace("midlayer", "layers.0") if "." in name else name},
        {"add": {"embed_tokens.weight": torch.zeros(96, 32)}},  # a copy of the target's
        {"pickled": True},
    ],
    ids=["midlayer", "layers.0", "model.layers.0", "with embedding", "pytorch_model.bin"],
)
def test_published_layouts(head, layout):
    rewrite(head, **layout)
    check_head_files(head)
    assert_same_head(head)


def test_the_first_published_config(head):
    """That of EAGLE3-LLaMA3.1: no taps, no rotary base, no head size, no name of a target, no trained depth."""
    edit(
        head,
        **dict.fromkeys(["eagle_config", "rope_theta", "head_dim", "num_target_layers", "block_size"]),
        num_attention_heads=4,
    )
    config = read_head_config(head)
    assert (config.rope_theta, config.head_dim, config.block_size) == (1e4, 8, 8)
    assert (config.target_layer_ids, config.num_target_layers, config.tap_width) == (None, None, 96)
    assert config.taps(32) == (1, 15, 28)
    assert_same_head(head)


def test_transformers_reads_the_config(head):
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(head)
    assert config.model_type == "llama"
    assert config.eagle_config["eagle_aux_hidden_state_layer_ids"] == [0, 1, 2]
    assert config.draft_vocab_size == 24


@pytest.mark.parametrize("absent", [True, False])
def test_a_head_without_lm_head_drafts_with_the_targets(tmp_path, absent):
    folder = written(tmp_path, draft_vocab_size=None)
    if absent:
        edit(folder, draft_vocab_size=None)
    config = read_head_config(folder)
    assert config.draft_vocab_size is None
    tensors = load_head_tensors(folder)
    assert not {"lm_head.weight", "d2t", "t2d"} & tensors.keys()
    model = AutoregressiveHead(config)
    model.load_state_dict(tensors)
    assert model.logits(torch.randn(1, 32), torch.randn(96, 32)).shape == (1, 96)
    assert model.token_ids(torch.tensor([7])).tolist() == [7]


def test_maps_between_equal_vocabularies_are_not_needed(tmp_path):
    folder = written(tmp_path, draft_vocab_size=96)
    before = load_head_tensors(folder)
    unused = {"d2t": torch.zeros(96, dtype=torch.int64), "t2d": torch.ones(96, dtype=torch.bool)}
    rewrite(folder, add=unused)
    assert load_head_tensors(folder).keys() == before.keys()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "key hidden_size is missing"),
        ({"num_hidden_layers": 2}, "num_hidden_layers is 2, but only 1 is supported"),
        ({"draft_vocab_size": 97}, "draft_vocab_size 97 outside"),
        ({"draft_vocab_size": 0}, "draft_vocab_size 0 outside"),
        (
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 4]}},
            r"target_layer_ids \[4\] out of range",
        ),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": []}}, "is empty"),
        ({"eagle_config": {}, "num_target_layers": 3}, r"target_layer_ids \[-1\] out of range"),
        ({"eagle_config": [1]}, "eagle_config is list"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state is false"),
        ({"eagle_config": {"norm_before_fc": True}}, "norm_before_fc is not supported"),
        ({"fc_norm": True}, "fc_norm is not supported"),
        ({"norm_output": True}, "norm_output is not supported"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings is not supported"),
        ({"target_hidden_size": 64}, "target_hidden_size differs"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope scaling"),
        ({"hidden_act": "gelu"}, "hidden_act gelu is not supported"),
    ],
    ids=str,
)
def test_faults_of_the_config_are_named(head, changes, message):
    edit(head, **changes)
    with pytest.raises(HeadError, match=message):
        read_head_config(head)


def test_faults_of_the_tensors_are_named(head):
    path = head / "model.safetensors"
    tensors = load_file(path)

    def check(message, **changed):
        save_file({k: v for k, v in (tensors | changed).items() if v is not None}, path)
        with pytest.raises(HeadError, match=message):
            load_head_tensors(head)

    check("missing tensors d2t", d2t=None)
    check(r"missing tensors lm_head\.weight", **{"lm_head.weight": None})
    check(r"unexpected tensors mask_hidden", mask_hidden=torch.zeros(1, 32))
    check(r"midlayer.self_attn.q_proj.weight is \[32, 32\], expected \[32, 64\]",
          **{"midlayer.self_attn.q_proj.weight": torch.zeros(32, 32)})  # fmt: skip
    d2t, t2d = tensors["d2t"], tensors["t2d"]
    check("d2t leads out of the target's vocabulary of 96", d2t=d2t + 60)
    check("several draft tokens to the same", d2t=-torch.arange(24))
    check("t2d and d2t name different tokens", t2d=t2d.roll(1))
    check("t2d and d2t name different tokens", t2d=torch.ones_like(t2d))


def test_a_broken_pickle_is_named(head):
    rewrite(head, pickled=True)
    (head / "pytorch_model.bin").write_bytes(b"not tensors")
    with pytest.raises(HeadError, match="not a readable file of tensors"):
        load_head_tensors(head)


def test_head_and_target_must_fit():
    target = {"hidden_size": 32, "vocab_size": 96, "num_hidden_layers": 4}
    check_fits_target(eagle_config(), SimpleNamespace(**target))
    with pytest.raises(HeadError, match="num_target_layers 4, target has num_hidden_layers 7"):
        check_fits_target(eagle_config(), SimpleNamespace(**target | {"num_hidden_layers": 7}))
    unnamed = eagle_config(num_target_layers=None, target_layer_ids=None)
    check_fits_target(unnamed, SimpleNamespace(**target | {"num_hidden_layers": 7}))
    with pytest.raises(HeadError, match=r"target has 3 layers; list a head's taps in its config.json"):
        check_fits_target(unnamed, SimpleNamespace(**target | {"num_hidden_layers": 3}))
