"""Refusals that the arguments alone decide."""

from __future__ import annotations

from .row import Refusal, above_one, on, other_than

CUDA_BACKENDS = ("flashinfer", "triton")
CPU_BACKEND = "jetspec_cpu"

ENGINE = (
    # Parallelism: every rank would have to build the same tree and accept the same path.
    Refusal(
        "pipeline parallelism",
        above_one("pp_size"),
        "--pp-size {it.args.pp_size} is not supported; use --pp-size 1.",
    ),
    Refusal(
        "tensor parallelism",
        above_one("tp_size"),
        "--tp-size {it.args.tp_size} is not supported yet, because all ranks must agree on the tree; "
        "use --tp-size 1.",
    ),
    Refusal(
        "attention data parallelism",
        lambda it: above_one("attn_dp_size")(it) or on("enable_dp_attention")(it),
        "data-parallel attention is not supported; leave out --attn-dp-size and --enable-dp-attention.",
    ),
    Refusal(
        "context parallelism",
        lambda it: above_one("dcp_size", "attn_cp_size")(it) or on("enable_prefill_cp")(it),
        "context parallelism is not supported; leave out --dcp-size, --attn-cp-size and --enable-prefill-cp.",
    ),
    Refusal(
        "disaggregation",
        lambda it: (
            other_than("null", "disaggregation_mode")(it)
            or other_than("null", "decoupled_spec_role")(it)
            or on("encoder_only", "language_only")(it)
        ),
        "disaggregated serving is not supported, because the drafter's KV is not transferred; "
        "serve prefill and decoding together (--disaggregation-mode null).",
    ),
    Refusal(
        "pd multiplexing",
        on("enable_pdmux"),
        "--enable-pdmux is not supported; leave it out.",
    ),
    Refusal(
        "two-batch overlap",
        on("enable_two_batch_overlap", "enable_single_batch_overlap"),
        "batch overlap is not supported; leave out --enable-two-batch-overlap and "
        "--enable-single-batch-overlap.",
    ),
    Refusal(
        "several tokenizer workers",
        above_one("tokenizer_worker_num"),
        "--tokenizer-worker-num {it.args.tokenizer_worker_num} is not supported, because SGLang loads no "
        "plugins in them; use 1.",
    ),
    # Scheduling.
    Refusal(
        "mixed chunk",
        on("enable_mixed_chunk"),
        "--enable-mixed-chunk is not supported; leave it out.",
    ),
    Refusal(
        "page size",
        above_one("page_size"),
        "--page-size {it.args.page_size} is not supported yet; use --page-size 1, and where SGLang has set it for an "
        "attention backend of its own choice, --attention-backend flashinfer.",
    ),
    Refusal(
        "decode graphs",
        lambda it: it.decode_graph_asked not in (None, "disabled") or it.get("enable_torch_compile"),
        "captured or compiled decoding is not supported yet and verify runs eagerly; leave out "
        "--cuda-graph-backend-decode, decode.backend of --cuda-graph-config, and --enable-torch-compile.",
    ),
    Refusal(
        "deterministic inference",
        on("enable_deterministic_inference", "rl_on_policy_target"),
        "--enable-deterministic-inference is not supported, because a tree verify computes a token in "
        "another batch shape than decoding; leave it out, and use --dtype float32 for reproducible text.",
    ),
    # Models and requests of another kind.
    Refusal(
        "LoRA",
        on("enable_lora", "lora_paths"),
        "LoRA is not supported; serve the merged model and leave out --enable-lora and --lora-paths.",
    ),
    Refusal(
        "diffusion LLM",
        on("dllm_algorithm"),
        "--dllm-algorithm is not supported; leave it out and serve a target that decodes token by token.",
    ),
    Refusal(
        "embedding",
        on("is_embedding", "prefill_only_disable_kv_cache", "enable_mis"),
        "--is-embedding, --prefill-only-disable-kv-cache and --enable-mis don't decode; leave them or "
        "--speculative-algorithm out.",
    ),
    Refusal(
        "grammar",
        lambda it: it.asked("grammar_backend") not in (None, "none"),
        "structured output is not supported yet, because a grammar has no masks for a tree; leave out "
        "--grammar-backend.",
    ),
    Refusal(
        "strict thinking",
        on("enable_strict_thinking"),
        "--enable-strict-thinking is not supported, because it works through a grammar; leave it out.",
    ),
    Refusal(
        "hidden states",
        on("enable_return_hidden_states", "enable_return_aux_hidden_states", "return_hidden_states_mode"),
        "returning hidden states is not supported, because JETSPEC uses them itself; leave out "
        "--enable-return-hidden-states and --return-hidden-states-mode.",
    ),
    Refusal(
        "routed experts",
        on("enable_return_routed_experts", "enable_return_indexer_topk"),
        "returning routed experts or indexer choices is not supported, because rejected nodes would be among "
        "them; leave out --enable-return-routed-experts and --enable-return-indexer-topk.",
    ),
    Refusal(
        "custom logit processors",
        on("enable_custom_logit_processor"),
        "--enable-custom-logit-processor is not supported, because a processor expects one row of logits a "
        "request, not one a node; leave it out.",
    ),
    Refusal(
        "watermark",
        on("enable_watermark"),
        "--enable-watermark is not supported; leave it out.",
    ),
    # Caches that would bring back the target's KV without the drafter's.
    Refusal(
        "cache tiers",
        on("enable_hierarchical_cache", "enable_lmcache", "enable_flexkv", "enable_hisparse"),
        "KV cache tiers restore the target's KV without the drafter's; leave out "
        "--enable-hierarchical-cache, --enable-lmcache, --enable-flexkv and --enable-hisparse.",
    ),
    Refusal(
        "unified memory",
        on("enable_unified_memory", "enable_unified_cache_external_linker", "enable_page_major_kv_layout"),
        "unified memory and page-major KV are not supported; leave out --enable-unified-memory, "
        "--enable-unified-cache-external-linker and --enable-page-major-kv-layout.",
    ),
    Refusal(
        "fp4 KV",
        lambda it: "fp4" in str(it.get("kv_cache_dtype") or ""),
        "--kv-cache-dtype {it.args.kv_cache_dtype} is not supported; use auto, bfloat16 or an fp8 type.",
    ),
    Refusal(
        "quantized KV on the CPU",
        lambda it: (
            it.device == "cpu"
            and any(
                "fp8" in str(it.get(f) or "auto")
                for f in ("kv_cache_dtype", "speculative_draft_kv_cache_dtype")
            )
        ),
        "quantized KV is not supported on the CPU; use --kv-cache-dtype auto and leave out "
        "--speculative-draft-kv-cache-dtype.",
    ),
    # Speculative flags that mean something else, or something lossy.
    Refusal(
        "adaptive steps",
        on("speculative_adaptive"),
        "--speculative-adaptive is EAGLE's controller; leave it out.",
    ),
    Refusal(
        "block verification",
        on("speculative_use_block_verification"),
        "--speculative-use-block-verification is for chains; leave it out.",
    ),
    Refusal(
        "rejection sampling",
        on("speculative_use_rejection_sampling"),
        "--speculative-use-rejection-sampling is for chains, and JETSPEC is lossless without; leave it out.",
    ),
    Refusal(
        "accept thresholds",
        other_than(1.0, "speculative_accept_threshold_single", "speculative_accept_threshold_acc"),
        "accept thresholds other than 1 change the output's distribution; leave out "
        "--speculative-accept-threshold-single and --speculative-accept-threshold-acc.",
    ),
    Refusal(
        "attention mode",
        other_than("prefill", "speculative_attention_mode"),
        "--speculative-attention-mode {it.args.speculative_attention_mode} is not supported; leave it out.",
    ),
    Refusal(
        "draft window",
        lambda it: (
            it.get("speculative_draft_window_size") is not None
            or it.get("speculative_draft_sink_size") is not None
        ),
        "a windowed drafter is not supported; leave out --speculative-draft-window-size and "
        "--speculative-draft-sink-size.",
    ),
    Refusal(
        "token map",
        on("speculative_token_map"),
        "--speculative-token-map is not supported, because the head drafts from the target's vocabulary; "
        "leave it out.",
    ),
    Refusal(
        "block size flag",
        on("speculative_dflash_block_size", "speculative_dspark_block_size"),
        "the block length is the head's and can't be set; leave out --speculative-dflash-block-size and "
        "--speculative-dspark-block-size, and limit the tree with --speculative-num-steps.",
    ),
    # Attention backends that can mask a tree.
    Refusal(
        "attention backend on CUDA",
        lambda it: it.device == "cuda" and it.attention_backends - set(CUDA_BACKENDS),
        "attention backend {it.unsupported_backends} can't verify a tree; use --attention-backend "
        + " or ".join(CUDA_BACKENDS)
        + ".",
    ),
    Refusal(
        "attention backend on the CPU",
        lambda it: it.device == "cpu" and it.attention_backends - {CPU_BACKEND},
        f"attention backend {{it.unsupported_backends}} can't verify a tree on the CPU; leave it out or use "
        f"--attention-backend {CPU_BACKEND}.",
    ),
    Refusal(
        "device",
        lambda it: it.device not in ("cuda", "cpu"),
        "device {it.device} is not supported; run on CUDA or on the CPU.",
    ),
)
