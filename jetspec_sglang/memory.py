"""How many requests fit: the verify logits are the buffer that no heuristic of SGLang knows about.

A verify forward returns one fp32 row of the whole vocabulary per tree node of every running request.
"""

from __future__ import annotations

from .config import ConfigError

GIB = 1024**3
# What we choose ourselves stays small; what a user asks for may cost more, up to a point.
DEFAULT_LOGITS_BYTES = 2 * GIB
MAX_LOGITS_BYTES = 16 * GIB
DEFAULT_MAX_REQUESTS = 48


def verify_logits_bytes(requests: int, budget: int, vocab_size: int) -> int:
    """Bytes of the fp32 logits of one verify forward."""
    return requests * budget * vocab_size * 4


def default_max_running_requests(budget: int, vocab_size: int) -> int:
    """``max_running_requests`` when the user set none: logits within 2 GiB, from 1 to 48 requests."""
    fitting = DEFAULT_LOGITS_BYTES // verify_logits_bytes(1, budget, vocab_size)
    return max(1, min(DEFAULT_MAX_REQUESTS, fitting))


def check_max_running_requests(requests: int | None, budget: int, vocab_size: int) -> None:
    """Refuse a user's ``max_running_requests`` whose verify logits exceed 16 GiB.

    Raises:
        ConfigError: with the arithmetic, and the largest values that fit.
    """
    if requests is None:
        return
    needed = verify_logits_bytes(requests, budget, vocab_size)
    if needed <= MAX_LOGITS_BYTES:
        return
    most_requests = MAX_LOGITS_BYTES // verify_logits_bytes(1, budget, vocab_size)
    most_nodes = MAX_LOGITS_BYTES // verify_logits_bytes(requests, 1, vocab_size)
    options = []
    if most_requests:
        options.append(f"--max-running-requests to at most {most_requests}")
    if most_nodes:
        options.append(f"--speculative-num-draft-tokens to at most {most_nodes}")
    raise ConfigError(
        f"verify logits would take {requests} requests x {budget} nodes x {vocab_size} tokens x 4 bytes = "
        f"{needed / GIB:.1f} GiB, over the limit of {MAX_LOGITS_BYTES // GIB} GiB; "
        f"lower {' or '.join(options)}."
    )
