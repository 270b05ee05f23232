"""A row of the table, and the usual conditions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .launch import Launch


@dataclass(frozen=True)
class Refusal:
    """One unsupported combination; ``sentence`` says what to do instead, with the launch as ``{it}``."""

    name: str
    applies: Callable[[Launch], Any]
    sentence: str

    def explain(self, it: Launch) -> str:
        return self.sentence.format(it=it)


def on(*fields: str) -> Callable[[Launch], bool]:
    """Any of these fields is set."""
    return lambda it: any(it.get(field) for field in fields)


def above_one(*fields: str) -> Callable[[Launch], bool]:
    """Any of these counts is above 1."""
    return lambda it: any((it.get(field) or 1) > 1 for field in fields)


def other_than(value: Any, *fields: str) -> Callable[[Launch], bool]:
    """Any of these fields is set to something else than ``value``."""
    return lambda it: any(it.get(field) not in (None, value) for field in fields)
