"""Real server args of SGLang, settled with the plugin in a process of its own: hooks stay in SGLang."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TARGET = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "float32",
}
HEAD = TARGET | {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "block_size": 8,
    "head_dim": 16,
    "rope_theta": 1e4,
    "num_target_layers": 4,
    "dflash_config": {"causal_head": True, "target_layer_ids": [1, 2], "mask_token_id": 3},
}
# Name -> (changes of the head's config or None for no head, server args).
CASES = {
    "defaults": ({}, {}),
    "head's own": ({"jetspec_config": {"budget": 12, "width": 3}}, {"speculative_eagle_topk": 2}),
    "several problems": ({}, {"tp_size": 2, "page_size": 16, "grammar_backend": "xgrammar"}),
    "budget": ({}, {"speculative_num_draft_tokens": 0}),
    "depth": ({}, {"speculative_num_steps": 8}),
    "bidirectional": (
        {
            "dflash_config": {"target_layer_ids": [1], "mask_token_id": 3},
            "jetspec_config": {"drafter": "causal_parallel"},
        },
        {},
    ),
    "other target": ({"hidden_size": 128}, {}),
    "last layer": (
        {"dflash_config": {"causal_head": True, "target_layer_ids": [1, 3], "mask_token_id": 3}},
        {},
    ),
    "disorder": (
        {"dflash_config": {"causal_head": True, "target_layer_ids": [2, 1], "mask_token_id": 3}},
        {},
    ),
    "twice": ({"dflash_config": {"causal_head": True, "target_layer_ids": [1, 1], "mask_token_id": 3}}, {}),
    "no head": (None, {"speculative_draft_model_path": None}),
    "head without use": ({"jetspec_config": {"drafter": "suffix"}}, {}),
    "wrong path": (None, {"speculative_draft_model_path": "/no/such/head"}),
    "memory": ({}, {"speculative_num_draft_tokens": 1024, "max_running_requests": 20000}),
    "not ours": (None, {"speculative_algorithm": None, "speculative_draft_model_path": None}),
}
FIELDS = (
    "speculative_num_draft_tokens",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "max_running_requests",
    "attention_backend",
    "grammar_backend",
)
SCRIPT = """
import json, sys, warnings
warnings.simplefilter("ignore")
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.arg_groups.overrides import resolving_view
from sglang.srt.server_args import ServerArgs

cases, fields, answers = *json.load(sys.stdin), {}
for name, arguments in cases.items():
    try:
        args = ServerArgs(**arguments)
        args.resolve_once()
        view = resolving_view(args)
        answers[name] = {field: getattr(view, field) for field in fields}
        answers[name]["decode graphs"] = view.cuda_graph_config.decode.backend
    except Exception as error:
        answers[name] = {"error": type(error).__name__, "message": str(error)}
print("ANSWERS" + json.dumps(answers))
"""


@pytest.fixture(scope="module")
def settled(tmp_path_factory):
    """What became of each case."""
    folder = tmp_path_factory.mktemp("models")
    target = write(folder / "target", TARGET)
    cases = {}
    for name, (head, arguments) in CASES.items():
        given = {"model_path": target, "speculative_algorithm": "jetspec", "device": "cpu"}
        if head is not None:
            given["speculative_draft_model_path"] = write(folder / name.replace(" ", "_"), HEAD | head)
        cases[name] = given | arguments
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps([cases, FIELDS]),
        capture_output=True,
        text=True,
        timeout=600,
        env=environment(),
    )
    answers = [line for line in done.stdout.splitlines() if line.startswith("ANSWERS")]
    assert answers, done.stderr[-3000:]
    return json.loads(answers[-1].removeprefix("ANSWERS"))


def write(folder: Path, config: dict) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def environment() -> dict:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("JETSPEC_", "SGLANG_"))}
    return kept | {"JETSPEC_CPU": "1", "HF_HUB_OFFLINE": "1"}


def test_defaults_are_filled_in(settled):
    assert settled["defaults"] == {
        "speculative_num_draft_tokens": 16,
        "speculative_num_steps": 7,
        "speculative_eagle_topk": 15,
        "max_running_requests": 32,
        "attention_backend": "jetspec_cpu",
        "grammar_backend": "none",
        "decode graphs": "disabled",
    }


def test_head_fills_in_below_the_flags(settled):
    answer = settled["head's own"]
    assert (answer["speculative_num_draft_tokens"], answer["speculative_eagle_topk"]) == (12, 2)


def test_several_problems_are_told_at_once(settled):
    assert settled["several problems"]["error"] == "UnsupportedError"
    message = settled["several problems"]["message"]
    assert all(said in message for said in ("--tp-size 2", "--page-size 16", "--grammar-backend"))
    assert message.count("\n") == 3


@pytest.mark.parametrize(
    ("case", "error", "said"),
    [
        ("budget", "ConfigError", "give 1 to 1024"),
        ("depth", "ConfigError", "give 1 to 7"),
        ("bidirectional", "ConfigError", "but this head is a bidirectional block head"),
        ("other target", "UnsupportedError", "made for this target"),
        ("last layer", "UnsupportedError", "output of layer 3, the target's last"),
        (
            "disorder",
            "UnsupportedError",
            "reads layers 2, 1, but SGLang hands out each layer once and in order",
        ),
        ("twice", "UnsupportedError", "reads layers 1, 1, but SGLang hands out each layer once"),
        ("no head", "UnsupportedError", "add --speculative-draft-model-path"),
        ("head without use", "UnsupportedError", "leave out --speculative-draft-model-path, or give"),
        ("wrong path", "UnsupportedError", "/no/such/head is neither a folder"),
        ("memory", "ConfigError", "20000 requests x 1024 nodes x 256 tokens"),
    ],
)
def test_refused_by_name(settled, case, error, said):
    assert settled[case]["error"] == error
    assert said in settled[case]["message"]


def test_a_server_without_jetspec_is_left_alone(settled):
    assert settled["not ours"]["speculative_num_draft_tokens"] is None
    assert settled["not ours"]["grammar_backend"] == "xgrammar"
