"""Server defaults of the CPU platform. A value that the user gave is never changed."""

from __future__ import annotations

import logging

import psutil

logger = logging.getLogger(__name__)

ATTENTION_BACKEND = "jetspec_cpu"

# The KV pool shares main memory with everything else on the machine, so it gets a part, not the rest.
KV_SHARE_OF_AVAILABLE_MEMORY = 1 / 8
KV_MAX_BYTES = 4 << 30
KV_MAX_TOKENS = 65536
MAX_RUNNING_REQUESTS = 32
CHUNKED_PREFILL_SIZE = 2048


def offer_attention_backend() -> None:
    """Make our backend's name a legal value of `--attention-backend`, for the target and the drafter."""
    from sglang.srt.arg_groups import choices

    for names in (choices.ATTENTION_BACKEND_CHOICES, choices.DRAFT_ATTENTION_BACKEND_CHOICES):
        if ATTENTION_BACKEND not in names:
            names.append(ATTENTION_BACKEND)


def apply_defaults(server_args) -> None:
    """Fill in what the user left open. SGLang records each assignment as this platform's decision."""
    given = getattr(server_args, "_raw_input", None) or {}
    # SGLang's own CPU rule has already filled this in with a backend that needs compiled kernels.
    if given.get("attention_backend") is None:
        server_args.attention_backend = ATTENTION_BACKEND
    if server_args.chunked_prefill_size is None:
        server_args.chunked_prefill_size = CHUNKED_PREFILL_SIZE
    if server_args.max_running_requests is None:
        server_args.max_running_requests = MAX_RUNNING_REQUESTS
    # By default an idle scheduler polls without a pause: a whole core, of the few that this machine has.
    server_args.sleep_on_idle = True
    if server_args.max_total_tokens is None and server_args.mem_fraction_static is None:
        server_args.max_total_tokens = default_pool_tokens(server_args)


def default_pool_tokens(server_args) -> int:
    """Tokens of KV cache that fit a modest part of the memory available now."""
    budget = min(psutil.virtual_memory().available * KV_SHARE_OF_AVAILABLE_MEMORY, KV_MAX_BYTES)
    tokens = int(budget // kv_bytes_per_token(server_args))
    return max(min(tokens, KV_MAX_TOKENS), 1024)


def kv_bytes_per_token(server_args) -> int:
    """Bytes of keys and values of one token over all layers, counted at full width (4 bytes in fp32)."""
    from sglang.srt.arg_groups.model_override_base import model_config_of

    config = model_config_of(server_args)
    heads = config.get_num_kv_heads(server_args.tp_size)
    layers = config.num_hidden_layers
    return max(2 * layers * heads * config.head_dim * config.dtype.itemsize, 1)
