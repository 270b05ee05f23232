"""What JETSPEC sets in SGLang's server args where the user left it open.

SGLang settles attention backend, graphs and grammar before it asks a plugin's algorithm; these are the fields
to declare over that.
"""

from __future__ import annotations

import logging
from typing import Any

from .config import JetSpecConfig
from .memory import check_max_running_requests, default_max_running_requests
from .refusals import CUDA_BACKENDS, Launch

logger = logging.getLogger(__name__)


def engine_defaults(view: Any) -> dict[str, Any]:
    """Fields that don't depend on the head. To be declared first: the refusals judge the result."""
    launch = Launch(view)
    # With no grammar backend, a request with a grammar is answered with status 400 by SGLang.
    fields: dict[str, Any] = {"grammar_backend": "none", **eager_graphs(launch)}
    if not launch.get("_speculative_draft_quantization_explicitly_set"):
        # SGLang hands the target's method down to the drafter, but heads are published unquantized.
        fields["speculative_draft_model_quantization"] = None
    if backend := attention_backend(launch):
        fields["attention_backend"] = backend
    return fields


def tree_defaults(view: Any, config: JetSpecConfig) -> dict[str, Any]:
    """Fields that follow from the tree's shape, after checking that the user's own fit.

    Raises:
        ConfigError: the user's ``max_running_requests`` needs too much memory for this budget.
    """
    launch = Launch(view)
    asked, vocab_size = launch.asked("max_running_requests"), launch.target.vocab_size
    check_max_running_requests(asked, config.budget, vocab_size)
    # A platform may have settled on fewer than the logits allow.
    fitting = default_max_running_requests(config.budget, vocab_size)
    settled = launch.get("max_running_requests") or fitting
    return {
        "speculative_num_draft_tokens": config.budget,
        "speculative_num_steps": config.depth,
        "speculative_eagle_topk": config.width,
        "max_running_requests": asked or min(settled, fitting),
    }


def attention_backend(launch: Launch) -> str | None:
    """A backend that can mask a tree, where SGLang chose another one by itself; None to leave it."""
    kinds = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")
    if launch.device != "cuda" or any(launch.asked(kind) for kind in kinds):
        return None
    if launch.attention_backends <= set(CUDA_BACKENDS):
        return None
    logger.info("JETSPEC uses attention backend %s: the default can't verify a tree.", CUDA_BACKENDS[0])
    return CUDA_BACKENDS[0]


def eager_graphs(launch: Launch) -> dict[str, Any]:
    """Fields that stop SGLang from capturing graphs.

    A captured verify would be causal: SGLang builds no tree mask for an algorithm of a plugin. Prefill graphs
    stay off with them unless the user names a backend, as the features they return are not tested.
    """
    from sglang.srt.model_executor.cuda_graph_config import Backend, Phase, with_phase

    graphs = launch.get("cuda_graph_config")
    if graphs is None:
        return {}
    graphs = with_phase(graphs, Phase.DECODE, backend=Backend.DISABLED)
    if not launch.asked("cuda_graph_backend_prefill"):
        graphs = with_phase(graphs, Phase.PREFILL, backend=Backend.DISABLED)
    if launch.device == "cuda":
        logger.info("JETSPEC verifies eagerly: CUDA graphs for decoding are off in this version.")
    return {"cuda_graph_config": graphs}
