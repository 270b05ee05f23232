"""The head that this process serves, where only SGLang's published arguments are at hand."""

from functools import cache

from jetspec_sglang.drafters.checkpoint import read_head_config
from jetspec_sglang.drafters.head_config import AnyHead

_read = cache(read_head_config)  # it is asked for each round, and doesn't change while a server runs


def served_head() -> AnyHead:
    from sglang.srt.runtime_context import get_spec

    return _read(get_spec().speculative_draft_model_path)
