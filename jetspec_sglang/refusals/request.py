"""What a single request can't ask of a JETSPEC server: it is answered with status 400, the server goes on.

SGLang puts every request of the DFlash family, to which JETSPEC belongs, through one check of its own; ours
goes around it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jetspec_sglang.flags import ALGORITHM
from jetspec_sglang.tree_settings import problem_of_request

TARGET = "sglang.srt.speculative.dflash_utils.validate_dflash_request"
GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")


def install() -> None:
    """Register the hook; SGLang applies it when every plugin has run."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(TARGET, validate_request, HookType.AROUND)


def validate_request(original: Callable[..., str | None], req: Any, enable_overlap: bool) -> str | None:
    """AROUND hook: the reason to refuse ``req``, None to serve it."""
    from sglang.srt.runtime_context import get_spec

    if get_spec().speculative_algorithm != ALGORITHM:
        return original(req, enable_overlap)
    return problem(req)


def problem(req: Any) -> str | None:
    """Why JETSPEC can't serve this request, None if it can."""
    if any(getattr(req.sampling_params, kind, None) is not None for kind in GRAMMARS):
        return (
            f"{ALGORITHM} does not support structured output ({', '.join(GRAMMARS)}) yet; leave it out, "
            f"or ask a server without --speculative-algorithm {ALGORITHM}."
        )
    if not req.origin_input_ids:
        return "The prompt is empty; send at least one token."
    if req.return_hidden_states:
        return f"{ALGORITHM} uses the hidden states itself; leave out return_hidden_states."
    if req.return_sampling_mask:
        return f"{ALGORITHM} does not support return_sampling_mask; leave it out."
    return problem_of_request(req.sampling_params.custom_params)
