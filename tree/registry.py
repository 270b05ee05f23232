"""Names to lazily imported objects: one visible table, open to other packages through entry points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any


class RegistryError(ValueError):
    """A name that is unknown, or taken twice."""


class Registry:
    """Names to ``module:attribute``; nothing is imported before ``get``."""

    def __init__(self, kind: str, table: Mapping[str, str], entry_point_group: str | None = None) -> None:
        self.kind = kind
        self._targets: dict[str, str] = {}
        for name, target in table.items():
            self.add(name, target)
        self._group = entry_point_group  # read at the first look-up, as listing installed packages takes time

    def add(self, name: str, target: str) -> None:
        if name in self._targets:
            raise RegistryError(
                f"{self.kind} {name!r} is registered twice, as {self._targets[name]} and {target}; "
                f"known: {', '.join(sorted(self._targets))}"
            )
        if target.count(":") != 1:
            raise RegistryError(f"{self.kind} {name!r}: {target!r} is not of the form module:attribute")
        self._targets[name] = target

    def get(self, name: str) -> Any:
        """Import and return what ``name`` stands for."""
        if name not in self:
            raise RegistryError(f"unknown {self.kind} {name!r}; known: {', '.join(self)}")
        module, _, attribute = self._all()[name].partition(":")
        return getattr(import_module(module), attribute)

    def _all(self) -> dict[str, str]:
        if self._group is not None:
            group, self._group = self._group, None
            for point in entry_points(group=group):
                self.add(point.name, point.value)
        return self._targets

    def __contains__(self, name: object) -> bool:
        return name in self._all()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._all()))

    def __len__(self) -> int:
        return len(self._all())
