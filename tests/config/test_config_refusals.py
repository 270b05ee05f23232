"""Every row of the refusal table: it applies when it should, says what to do, and stays silent otherwise."""

import json
from enum import IntEnum
from types import SimpleNamespace

import pytest

from jetspec_sglang import refusals, tree_settings
from jetspec_sglang.builtin.head import builtin_head
from jetspec_sglang.refusals import TABLE, Launch, UnsupportedError, launch, refuse_unsupported, unsupported
from jetspec_sglang.refusals.request import problem
from jetspec_sglang.tree_settings import TreeSettings

Arch = IntEnum("Arch", ["MHA", "MLA", "SSM"])


def target(architecture="LlamaForCausalLM", **facts):
    text = SimpleNamespace(layer_types=facts.pop("layer_types", None))
    config = SimpleNamespace(architectures=[architecture], get_text_config=lambda: text)
    return SimpleNamespace(
        **{
            "hf_config": config,
            "hf_text_config": text,
            "attention_arch": Arch.MHA,
            "is_multimodal": False,
            "is_encoder_decoder": False,
            "is_hybrid_swa": False,
        }
        | facts
    )


PLAIN_TARGET = target()


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Make a launch that nothing is wrong with, except for what is passed."""
    (tmp_path / "config.json").write_text(json.dumps({"block_size": 8}))
    monkeypatch.setattr(Launch, "head_problem", None)
    monkeypatch.setattr(Launch, "head_unreadable", None)
    monkeypatch.setattr(Launch, "is_recurrent", property(lambda it: it.target.attention_arch is Arch.SSM))

    def make(target=PLAIN_TARGET, **fields):
        args = {
            "device": "cuda",
            "attention_backend": "flashinfer",
            "speculative_draft_model_path": str(tmp_path),
        }
        made = Launch(SimpleNamespace(**args | fields))
        made.target = target
        return made

    return make


# Row -> settings that trigger it; each dict of a list on its own.
TRIGGERS = {
    "pipeline parallelism": [{"pp_size": 2}],
    "tensor parallelism": [{"tp_size": 2}],
    "attention data parallelism": [{"attn_dp_size": 2}, {"enable_dp_attention": True}],
    "context parallelism": [{"dcp_size": 2}, {"attn_cp_size": 2}, {"enable_prefill_cp": True}],
    "disaggregation": [
        {"disaggregation_mode": "decode"},
        {"encoder_only": True},
        {"language_only": True},
        {"decoupled_spec_role": "drafter"},
    ],
    "pd multiplexing": [{"enable_pdmux": True}],
    "two-batch overlap": [{"enable_two_batch_overlap": True}, {"enable_single_batch_overlap": True}],
    "several tokenizer workers": [{"tokenizer_worker_num": 2}],
    "mixed chunk": [{"enable_mixed_chunk": True}],
    "page size": [{"page_size": 64}],
    "decode graphs": [
        {"cuda_graph_backend_decode": "full"},
        {"cuda_graph_config": {"decode": {"backend": "breakable"}}},
        {"enable_torch_compile": True},
    ],
    "deterministic inference": [{"enable_deterministic_inference": True}, {"rl_on_policy_target": "fsdp"}],
    "LoRA": [{"enable_lora": True}, {"lora_paths": ["a"]}],
    "diffusion LLM": [{"dllm_algorithm": "LowConfidence"}],
    "embedding": [{"is_embedding": True}, {"prefill_only_disable_kv_cache": True}, {"enable_mis": True}],
    "grammar": [{"grammar_backend": "xgrammar"}],
    "strict thinking": [{"enable_strict_thinking": True}],
    "hidden states": [
        {"enable_return_hidden_states": True},
        {"return_hidden_states_mode": "last"},
        {"enable_return_aux_hidden_states": True},
    ],
    "routed experts": [{"enable_return_routed_experts": True}, {"enable_return_indexer_topk": True}],
    "custom logit processors": [{"enable_custom_logit_processor": True}],
    "watermark": [{"enable_watermark": True}],
    "cache tiers": [
        {"enable_hierarchical_cache": True},
        {"enable_lmcache": True},
        {"enable_flexkv": True},
        {"enable_hisparse": True},
    ],
    "unified memory": [
        {"enable_unified_memory": True},
        {"enable_unified_cache_external_linker": True},
        {"enable_page_major_kv_layout": True},
    ],
    "fp4 KV": [{"kv_cache_dtype": "fp4_e2m1"}, {"kv_cache_dtype": "nvfp4"}],
    "quantized KV on the CPU": [
        {"device": "cpu", "attention_backend": "jetspec_cpu", field: "fp8_e4m3"}
        for field in ("kv_cache_dtype", "speculative_draft_kv_cache_dtype")
    ],
    "adaptive steps": [{"speculative_adaptive": True}],
    "block verification": [{"speculative_use_block_verification": True}],
    "rejection sampling": [{"speculative_use_rejection_sampling": True}],
    "accept thresholds": [
        {"speculative_accept_threshold_single": 0.9},
        {"speculative_accept_threshold_acc": 0.9},
    ],
    "attention mode": [{"speculative_attention_mode": "decode"}],
    "draft window": [{"speculative_draft_window_size": 512}, {"speculative_draft_sink_size": 0}],
    "token map": [{"speculative_token_map": "map.pt"}],
    "block size flag": [{"speculative_dflash_block_size": 8}, {"speculative_dspark_block_size": 8}],
    "attention backend on CUDA": [
        {"attention_backend": "fa3"},
        {"decode_attention_backend": "trtllm_mha"},
        {"prefill_attention_backend": "fa4"},
        {"speculative_draft_attention_backend": "fa3"},
    ],
    "attention backend on the CPU": [{"device": "cpu", "attention_backend": "torch_native"}],
    "device": [{"device": "xpu"}],
    "multimodal target": [{"target": target("Qwen3VLForConditionalGeneration", is_multimodal=True)}],
    "encoder-decoder target": [{"target": target(is_encoder_decoder=True)}],
    "sliding-window target": [
        {"target": target(is_hybrid_swa=True)},
        {"target": target(layer_types=["full_attention", "sliding_attention"])},
    ],
    "MLA target": [{"target": target(attention_arch=Arch.MLA)}],
    "recurrent target": [{"target": target(attention_arch=Arch.SSM)}],
    "target without features": [{"target": target("Qwen2ForCausalLM")}],
    "no head": [{"speculative_draft_model_path": None}],
    "head without use": [{"headless": True}],
    "head not found": [{"speculative_draft_model_path": "/no/such/head"}],
    "head unreadable": [{"head_unreadable": "config.json is not valid JSON; copy it again."}],
    "head does not fit": [
        {"head_problem": "the head's hidden size 8 is not the target's 16; use its own head."}
    ],
    "drafting in levels on Triton": [
        {"drafts_in_levels": True, "attention_backend": "triton"},
        {"drafts_in_levels": True, "decode_attention_backend": "triton"},
        {"drafts_in_levels": True, "speculative_draft_attention_backend": "triton"},
    ],
    "features beside fp8 KV": [
        {"drafts_in_levels": True, "kv_cache_dtype": "fp8_e4m3"},
        {"drafts_in_levels": True, "kv_cache_dtype": "mxfp8"},
        {"drafts_in_levels": True, "speculative_draft_kv_cache_dtype": "fp8_e5m2"},
    ],
}


@pytest.fixture(autouse=True)
def _no_model_imports(monkeypatch):
    """Only the one that reads a class's source is real: importing SGLang's models takes many seconds."""
    real = launch.can_capture
    known = {"LlamaForCausalLM": True, "Qwen2ForCausalLM": False}
    monkeypatch.setattr(launch, "can_capture", lambda name: known[name] if name in known else real(name))


def test_every_row_has_a_trigger():
    assert [row.name for row in TABLE] == list(TRIGGERS)


@pytest.mark.parametrize(
    ("name", "settings"),
    [(name, one) for name, many in TRIGGERS.items() for one in many],
    # Some values print an address, which differs between the processes of a parallel run.
    ids=lambda value: value if isinstance(value, str) else ", ".join(value),
)
def test_row_applies_alone_and_says_what_to_do(start, monkeypatch, name, settings):
    settings = dict(settings)
    for found in ("head_problem", "head_unreadable", "headless", "drafts_in_levels"):
        if found in settings:
            monkeypatch.setattr(Launch, found, settings.pop(found))
    problems = unsupported(start(**settings))
    assert [found for found, _ in problems] == [name]
    sentence = problems[0][1]
    assert any(verb in sentence for verb in ("use ", "leave ", "serve ", "add ", "give ", "run "))
    assert "\n" not in sentence
    assert "{" not in sentence


def test_nothing_applies_to_a_plain_start(start):
    assert unsupported(start()) == []
    assert unsupported(start(device="cpu", attention_backend="jetspec_cpu")) == []
    assert unsupported(start(attention_backend="triton", kv_cache_dtype="fp8_e5m2")) == []


def test_a_head_that_drafts_in_levels_has_a_way_to_run(start, monkeypatch):
    monkeypatch.setattr(Launch, "drafts_in_levels", True)
    backends = {"attention_backend": "triton", "speculative_draft_attention_backend": "flashinfer"}
    kv = {"kv_cache_dtype": "fp8_e4m3", "speculative_draft_kv_cache_dtype": "bfloat16"}
    assert unsupported(start(**backends, **kv)) == []
    assert unsupported(start(device="cpu", attention_backend="jetspec_cpu")) == []


@pytest.mark.parametrize(
    ("name", "found"), [("autoregressive", True), ("causal", False), ("spec_block", False)]
)
def test_which_heads_draft_in_levels(name, found):
    view = SimpleNamespace(speculative_draft_model_path=str(builtin_head(name)))
    assert Launch(view).drafts_in_levels is found


def test_what_the_cpu_refuses_anyway_is_said_once(start, monkeypatch):
    monkeypatch.setattr(Launch, "drafts_in_levels", True)
    assert len(unsupported(start(device="cpu", attention_backend="triton"))) == 1
    assert len(unsupported(start(device="cpu", attention_backend="jetspec_cpu", kv_cache_dtype="mxfp8"))) == 1


def test_all_problems_are_reported_together(start, monkeypatch):
    made = start(tp_size=2, page_size=64, speculative_draft_model_path=None)
    monkeypatch.setattr(refusals, "Launch", lambda view: made)
    with pytest.raises(UnsupportedError) as error:
        refuse_unsupported(made.args)
    lines = str(error.value).splitlines()
    assert len(lines) == 4
    assert all(line.startswith("- ") for line in lines[1:])
    assert "--tp-size 2" in lines[1]


def request(**fields):
    kinds = ("json_schema", "regex", "ebnf", "structural_tag", "custom_params")
    parameters = {kind: fields.pop(kind, None) for kind in kinds}
    defaults = {"return_hidden_states": False, "return_sampling_mask": False, "origin_input_ids": [5]}
    return SimpleNamespace(sampling_params=SimpleNamespace(**parameters), **defaults | fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"json_schema": "{}"},
        {"regex": "a+"},
        {"ebnf": "root ::= 'a'"},
        {"structural_tag": "{}"},
        {"return_hidden_states": "last"},
        {"return_sampling_mask": True},
    ],
    ids=str,
)
def test_a_request_is_refused_by_name(fields):
    (field,) = fields
    said = problem(request(**fields))
    assert "JETSPEC" in said
    assert field in said
    assert "leave" in said


def test_an_empty_prompt_is_refused():
    assert "empty" in problem(request(origin_input_ids=[]))


@pytest.fixture
def served(monkeypatch):
    settings = TreeSettings(
        budget=16,
        depth=7,
        width=8,
        expansion="optimal",
        scoring="accum_logp",
        acceptance="match",
        drafter="x",
    )
    monkeypatch.setattr(tree_settings, "_served", settings)


@pytest.mark.parametrize("asked", [None, {}, {"thinking_budget": 7}, {"jetspec": {"budget": 4}}], ids=str)
def test_an_ordinary_request_is_served(served, asked):
    assert problem(request(custom_params=asked)) is None


def test_a_request_for_a_larger_tree_than_the_servers_is_refused(served):
    text = problem(request(custom_params={"jetspec": {"budget": 17}}))
    assert text == (
        "custom_params.jetspec: budget is 17; give a whole number from 1 to 16, which this server has."
    )


def test_typed_and_settled_values_are_kept_apart():
    """SGLang fills in a grammar backend itself; only one that the user typed is refused."""
    args = SimpleNamespace(grammar_backend="xgrammar", _raw_input={"grammar_backend": None})
    assert Launch(args).get("grammar_backend") == "xgrammar"
    assert Launch(args).asked("grammar_backend") is None


@pytest.mark.parametrize(
    ("architecture", "captures"), [("Qwen3ForCausalLM", True), ("GptOssForCausalLM", True)]
)
def test_capture_is_read_from_the_class(architecture, captures):
    assert launch.can_capture(architecture) is captures


def test_defined_method_is_found_only_in_its_class():
    source = "class A(B):\n    def f(self): ...\nclass C(B):\n    x = 1\n"
    assert launch._defines(source, "A", "f")
    assert not launch._defines(source, "C", "f")
    assert not launch._defines(source, "Missing", "f")
