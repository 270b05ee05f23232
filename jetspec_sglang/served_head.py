"""The head that this process serves, where only SGLang's published arguments are at hand."""

from functools import cache

from jetspec_sglang.drafters.checkpoint import read_head_config
from jetspec_sglang.drafters.head_config import AnyHead
from jetspec_sglang.drafters.no_head import NoHead

from .config import SUFFIX

_read = cache(read_head_config)  # it is asked for each round, and doesn't change while a server runs


def head_of(path: str | None) -> AnyHead | NoHead:
    """The head in `path`. Without one a server has got past `refusals` only if it drafts without."""
    return NoHead(SUFFIX) if path is None else _read(path)


def served_head() -> AnyHead | NoHead:
    from sglang.srt.runtime_context import get_spec

    return head_of(get_spec().speculative_draft_model_path)


def drafted_depth() -> int:
    """How deep the head of this process drafts; what is grafted onto its trees may be deeper."""
    from sglang.srt.runtime_context import get_spec

    steps, block_length = get_spec().speculative_num_steps, served_head().block_size
    return steps if block_length is None else min(steps, block_length - 1)
