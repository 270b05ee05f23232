"""A row of the contract."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Symbol:
    """``params`` of a function, ``members`` of a class, or neither if it only has to exist."""

    path: str
    params: tuple[str, ...] | None = None
    members: tuple[str, ...] = ()


def function(path: str, params: str = "") -> Symbol:
    """A function with exactly these parameters, in this order; keyword-only ones without their marker."""
    return Symbol(_full(path), params=tuple(params.split()))


def class_(path: str, members: str = "") -> Symbol:
    """A class whose own body has at least these members."""
    return Symbol(_full(path), members=tuple(members.split()))


def name(path: str) -> Symbol:
    """Anything that is there."""
    return Symbol(_full(path))


def _full(path: str) -> str:
    # Nearly all of SGLang that we touch is its runtime.
    return f"sglang.{path}" if path.startswith("kernels.") else f"sglang.srt.{path}"
