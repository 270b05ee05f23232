"""The contract with SGLang: each of its symbols that we subclass, call, read or hook, checked at start.

The check reads SGLang's source and imports nothing, as it also runs in processes that never load a model.
The list itself is in :mod:`.server` and :mod:`.cpu`.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from .cpu import CPU
from .reader import problem_with
from .server import SERVER
from .symbol import Symbol

SGLANG_VERSION = "0.5.23"
CONTRACT = SERVER + CPU


class UpstreamError(RuntimeError):
    """The installed SGLang is not the one that JETSPEC was built for."""


@dataclass(frozen=True)
class Mismatch:
    """A symbol that is not as the contract says."""

    path: str
    problem: str

    def __str__(self) -> str:
        return f"{self.path} {self.problem}"


def require() -> None:
    """Check version and contract.

    Raises:
        UpstreamError: naming the version to install, or every symbol that differs.
    """
    require_version()
    mismatches = check_upstream()
    if mismatches:
        lines = "\n".join(f"- {mismatch}" for mismatch in mismatches)
        raise UpstreamError(
            f"this SGLang {SGLANG_VERSION} is not the released one; reinstall it with "
            f"`pip install --force-reinstall --no-deps sglang=={SGLANG_VERSION}`:\n{lines}"
        )


def require_version() -> None:
    """Check that the pinned SGLang is installed.

    Raises:
        UpstreamError: it is not; the message says what to install.
    """
    found = installed_version()
    if found != SGLANG_VERSION:
        state = f"SGLang {found} is installed" if found else "SGLang is not installed"
        raise UpstreamError(
            f"{state}, but JETSPEC works with {SGLANG_VERSION} only; "
            f"run `pip install sglang=={SGLANG_VERSION}`."
        )


def installed_version() -> str | None:
    try:
        return version("sglang")
    except PackageNotFoundError:
        return None


def check_upstream(contract: tuple[Symbol, ...] = CONTRACT) -> list[Mismatch]:
    """All symbols of ``contract`` that differ from what it says."""
    return [Mismatch(symbol.path, problem) for symbol in contract if (problem := problem_with(symbol))]
