"""Which tree a request gets: what the server was started with, or what the request itself asks for.

A request asks in SGLang's own field, `sampling_params.custom_params`, under the key `jetspec`:

    {"jetspec": {"budget": 16, "width": 4, "expansion": "eager", "scoring": "entropy", "acceptance": "traversal"}}

The text does not depend on any of it (nor its law, where tokens are sampled), only the number of rounds does. So
one server compares every tree at the same time, and a client that prefers others' speed to its own can ask for
less.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from .config import ConfigError, JetSpecConfig, names_of, trees_of
from .tree import scoring_policy

KEY = "jetspec"
SIZES = ("budget", "depth", "width")  # a request may have less than the server, not more
SERVER_ONLY = ("drafter", "conditioning")
READS_A_FILE = "rank_histogram"


@dataclass(frozen=True)
class TreeSettings:
    """How one request's trees are made in each round. `trace` keeps its rounds for `/server_info`."""

    budget: int
    depth: int
    width: int
    expansion: str
    scoring: str
    acceptance: str
    drafter: str
    conditioning: str = "marginal"
    graft: str = "none"  # a request may do without what the server grafts
    trace: bool = False

    @classmethod
    def of_server(cls, config: JetSpecConfig) -> TreeSettings:
        names = (field.name for field in fields(cls) if field.name != "trace")
        return cls(**{name: getattr(config, name) for name in names})

    def of_request(self, custom_params: Any) -> TreeSettings:
        """These settings with a request's own in their place.

        A request that was refused for its `custom_params` gets these: SGLang runs it once before it ends it.
        """
        if not custom_params or self.problem(custom_params):
            return self
        return replace(self, **(custom_params.get(KEY) or {}))

    def problem(self, custom_params: Any) -> str | None:
        """Why a request can't have what it asks for, in one sentence; None if it can."""
        if custom_params is None:
            return None
        if not isinstance(custom_params, dict):
            return f"custom_params is {str(custom_params)[:80]!r}; give an object."
        if (asked := custom_params.get(KEY)) is None:
            return None
        known = [field.name for field in fields(self) if field.name not in SERVER_ONLY]
        if not isinstance(asked, dict):
            return f"custom_params.{KEY} is {asked!r}; give an object with any of {', '.join(known)}."
        choices = names_of(trees_of(self.conditioning, self.graft))
        for name, value in asked.items():
            if name not in known:
                return f"custom_params.{KEY} has the unknown key {name}; use only {', '.join(known)}."
            if text := self._problem_with(name, value, choices.get(name)):
                return f"custom_params.{KEY}: {text}"
        return None

    def _problem_with(self, name: str, value: Any, choices: list[str] | None) -> str | None:
        if name == "graft":
            choices = list(dict.fromkeys(("none", self.graft)))
        if name in SIZES:
            most = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                return f"{name} is {value!r}; give a whole number from 1 to {most}, which this server has."
        elif choices is not None:
            if value not in choices:
                return f"{name} is {value!r}; give one of {', '.join(choices)}."
        elif name == "scoring":
            return self._problem_with_scoring(value)
        elif not isinstance(value, bool):
            return f"{name} is {value!r}; give true or false."
        return None

    def _problem_with_scoring(self, value: Any) -> str | None:
        if not isinstance(value, str):
            return f"scoring is {value!r}; give a policy's name, such as accum_logp."
        if value.partition(":")[0] == READS_A_FILE and value != self.scoring:
            return f"scoring {READS_A_FILE} reads a file of the server; start the server with it instead."
        try:
            scoring_policy(value)
        except ValueError as error:
            return f"{error}."
        return None


_served: TreeSettings | None = None


def publish(settings: TreeSettings) -> None:
    """Say what this process serves. Requests are checked in it, before the worker sees them."""
    global _served
    _served = settings


def problem_of_request(custom_params: Any) -> str | None:
    """`TreeSettings.problem` against what this process serves.

    Raises:
        ConfigError: nothing is served here yet.
    """
    if _served is None:
        raise ConfigError("no JETSPEC worker has published its settings in this process; start one first.")
    return _served.problem(custom_params)
