"""Refusals that need the target's or the head's config."""

from __future__ import annotations

from .launch import CAPTURE_METHOD, Launch
from .row import Refusal


def _is_mla(it: Launch) -> bool:
    return it.target.attention_arch.name == "MLA"


def _has_window(it: Launch) -> bool:
    return it.target.is_hybrid_swa or "sliding_attention" in it.target_layer_types


TARGET = (
    Refusal(
        "multimodal target",
        lambda it: it.target.is_multimodal,
        "target {it.architecture} is multimodal; serve a text-only target.",
    ),
    Refusal(
        "encoder-decoder target",
        lambda it: it.target.is_encoder_decoder,
        "target {it.architecture} has an encoder; serve a decoder-only target.",
    ),
    Refusal(
        "sliding-window target",
        _has_window,
        "target {it.architecture} has sliding-window layers, whose KV has slots of its own; "
        "serve a target with full attention in all layers.",
    ),
    Refusal(
        "MLA target",
        _is_mla,
        "target {it.architecture} uses latent attention (MLA), whose KV can't be moved along a tree yet; "
        "serve a target with MHA or GQA.",
    ),
    Refusal(
        "recurrent target",
        lambda it: it.is_recurrent,
        "target {it.architecture} has recurrent (Mamba or linear-attention) layers, which need one state a "
        "tree node; serve a target with full attention in all layers.",
    ),
    Refusal(
        "target without features",
        lambda it: not it.headless and not it.target_captures,
        f"SGLang's model class {{it.architecture}} has no {CAPTURE_METHOD}, so no head can read its "
        "features; serve a target whose class has it, such as LlamaForCausalLM or Qwen3ForCausalLM.",
    ),
)

# Decided before SGLang itself opens the head's config: see `jetspec_sglang.head_place`.
HEAD_PLACE = (
    Refusal(
        "no head",
        lambda it: not it.head_path and not it.headless,
        "no draft head is given; add --speculative-draft-model-path with the folder of one, or "
        "--jetspec-drafter suffix to draft without.",
    ),
    Refusal(
        "head without use",
        lambda it: it.head_path and it.headless,
        "the drafter suffix uses no head; leave out --speculative-draft-model-path, or give --jetspec-graft suffix "
        "instead of --jetspec-drafter suffix to use both.",
    ),
    Refusal(
        "head not found",
        lambda it: it.head_absent,
        "{it.head_absent}",
    ),
    Refusal(
        "head unreadable",
        lambda it: it.head_unreadable,
        "{it.head_unreadable}; give --speculative-draft-model-path a whole head.",
    ),
)

HEAD = (
    *HEAD_PLACE,
    Refusal(
        "head does not fit",
        lambda it: it.head_problem,
        "{it.head_problem}; give --speculative-draft-model-path a head made for this target.",
    ),
    Refusal(
        "drafting in levels on Triton",
        lambda it: it.device == "cuda" and it.draft_attention_backend == "triton" and it.drafts_in_levels,
        "an autoregressive head hides other branches by a mask over earlier rows, which attention backend triton "
        "ignores; give --speculative-draft-attention-backend flashinfer.",
    ),
    Refusal(
        "features beside fp8 KV",
        lambda it: it.device == "cuda" and "fp8" in it.draft_kv_dtype and it.drafts_in_levels,
        "an autoregressive head keeps features whose memory is counted as KV of 16 bits; give "
        "--speculative-draft-kv-cache-dtype bfloat16.",
    ),
)
