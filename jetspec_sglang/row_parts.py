"""Work on rows of vocabulary size in parts, so that what it holds beside its result stays small.

A round may have thousands of rows, and SGLang's sampler keeps about ten tensors of their size at a time.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

PART_BYTES = 64 * 1024**2  # of fp32 rows


def in_parts(work: Callable[[slice], torch.Tensor], rows: int, vocab_size: int) -> torch.Tensor:
    """What `work` makes of rows 0 to `rows` of `vocab_size` fp32 numbers each, [rows, ...]; it is called with some of
    them at a time."""
    most = max(1, PART_BYTES // (4 * vocab_size))
    first = work(slice(0, most))
    if rows <= most:
        return first
    result = first.new_empty(rows, *first.shape[1:])
    result[:most] = first
    for start in range(most, rows, most):
        part = slice(start, start + most)
        result[part] = work(part)
    return result
