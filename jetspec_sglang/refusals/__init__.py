"""What JETSPEC doesn't support yet, checked at start and reported all at once. Nothing falls back silently.

The table is in two files: :mod:`.engine` (arguments alone) and :mod:`.target` (target and head).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .engine import CPU_BACKEND, CUDA_BACKENDS, ENGINE
from .launch import Launch
from .row import Refusal
from .target import HEAD, HEAD_PLACE, TARGET

__all__ = [
    "CPU_BACKEND",
    "CUDA_BACKENDS",
    "ENGINE",
    "HEAD",
    "HEAD_PLACE",
    "TABLE",
    "TARGET",
    "Launch",
    "Refusal",
    "UnsupportedError",
    "refuse_unsupported",
    "unsupported",
]

TABLE = ENGINE + TARGET + HEAD


class UnsupportedError(ValueError):
    """JETSPEC is combined with something it doesn't support; one sentence a line."""


def unsupported(launch: Launch, rows: Iterable[Refusal] = TABLE) -> list[tuple[str, str]]:
    """Name and sentence of every row that applies."""
    return [(row.name, row.explain(launch)) for row in rows if row.applies(launch)]


def refuse_unsupported(view: Any, rows: Iterable[Refusal] = TABLE) -> None:
    """Check a view of SGLang's server args against the table, or some rows of it.

    Raises:
        UnsupportedError: with the sentences of all failing rows.
    """
    problems = [sentence for _, sentence in unsupported(Launch(view), rows)]
    if problems:
        lines = "\n".join(f"- {problem}" for problem in problems)
        raise UnsupportedError(f"JETSPEC can't start with these settings:\n{lines}")
