"""What a JETSPEC run is: one frozen record, and the four places its values come from.

A value is taken from the first source that has one:

1. flags: SGLang's own ``--speculative-num-draft-tokens/-num-steps/-eagle-topk`` and our ``--jetspec-*``;
2. the draft head's ``config.json``, dict ``jetspec_config``: what the head was trained and tuned for;
3. ``JETSPEC_CONFIG`` in the environment, JSON text or the path of a JSON file: a site's own defaults;
4. the built-in defaults.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The user's own channel, read-only for us. `--jetspec-*` flags must outrank the head's config while this
# one ranks below it, therefore the flags travel to child processes in a variable of their own.
CONFIG_ENV = "JETSPEC_CONFIG"
FLAGS_ENV = "JETSPEC_CLI_FLAGS"

MAX_BUDGET = 1024
MAX_WIDTH = 64
DEFAULT_BUDGET = 16
DEFAULT_WIDTH = 16  # a row is sorted anyway; a narrower tree is not the best one
DEFAULT_SUFFIX_CACHE = 1 << 19  # tokens, 44 MB when it is full
MAX_SUFFIX_CACHE = 1 << 28

# SGLang's field for a setting, and how a user types it.
SGLANG_FLAGS = {
    "budget": ("speculative_num_draft_tokens", "--speculative-num-draft-tokens"),
    "depth": ("speculative_num_steps", "--speculative-num-steps"),
    "width": ("speculative_eagle_topk", "--speculative-eagle-topk"),
}
# Our own flags, whose text is the setting's value as it is.
JETSPEC_FLAGS = {
    "drafter": "--jetspec-drafter",
    "scoring": "--jetspec-scoring",
    "expansion": "--jetspec-expansion",
    "acceptance": "--jetspec-acceptance",
    "budget_policy": "--jetspec-budget",
    "graft": "--jetspec-graft",
    "suffix_cache": "--jetspec-suffix-cache",
}
NAMED = ("drafter", "scoring", "expansion", "acceptance", "budget_policy", "graft")
SETTINGS = (*NAMED, "budget", "depth", "width", "suffix_cache")
BUDGET_POLICIES = ("fixed", "adaptive", "bandit")
SUFFIX = "suffix"  # the drafter without a head, whose branches can also be grafted onto a head's trees
GRAFTS = ("none", SUFFIX)
# Our own drafters, and the heads they are for.
HEADS = {
    "causal_parallel": "a causal block head (is_causal, dflash_config.causal or causal_head true)",
    "diffusion": "a bidirectional block head (none of is_causal, dflash_config.causal and causal_head true)",
    "autoregressive": "an EAGLE-3 head",
    "spec_block": "a spec-block head (SpecBlockDraftModel)",
    SUFFIX: "no head",
}


class ConfigError(ValueError):
    """A setting that can't be used. The message is one sentence that says what to do instead."""


@dataclass(frozen=True)
class JetSpecConfig:
    """The settings of a run. ``budget`` counts the root (1: plain decoding), ``block_length`` the anchor.

    With a policy other than ``fixed``, ``budget`` is the most that a round may use. ``depth`` is the most that a round
    can accept; grafted branches may be deeper than the head drafts. ``suffix_cache`` is in tokens.
    """

    drafter: str
    scoring: str
    expansion: str
    acceptance: str
    budget_policy: str
    budget: int
    depth: int
    width: int
    block_length: int
    conditioning: str = "marginal"  # of one of our own drafters: what its rows depend on
    graft: str = "none"
    suffix_cache: int = 0

    def __post_init__(self) -> None:
        for name in SETTINGS:
            _check(name, getattr(self, name), "given")
        _check_depth(self.depth, "given", _deepest(self.block_length, self.budget, self.graft))

    @property
    def head_depth(self) -> int:
        """How deep the head drafts."""
        return min(self.depth, self.block_length - 1)


def resolve_config(view: Any, head: Any) -> JetSpecConfig:
    """Settle all settings for the server args in ``view`` and a head with ``block_size``, ``drafter`` and
    ``conditioning``.

    Raises:
        ConfigError: a value out of range, of the wrong type or unknown, or JSON that can't be read.
    """
    settled: dict[str, tuple[Any, str]] = {}
    for values, origin in _sources(view):  # each overwrites the ones before it
        for name, value in values.items():
            settled[name] = (value, origin or _flag(name))
    settled.setdefault("drafter", (head.drafter, "what the head is"))
    for name, (value, origin) in settled.items():
        _check(name, value, origin)
    chosen = {name: value for name, (value, _) in settled.items()}
    conditioning = head.conditioning if chosen["drafter"] in HEADS else "marginal"
    graft = chosen.setdefault("graft", "none")
    _check_drafter(settled, head.drafter, conditioning, graft)
    chosen.setdefault("scoring", "accum_logp")
    chosen.setdefault("expansion", "optimal")
    chosen.setdefault("acceptance", default_acceptance(chosen["drafter"], trees_of(conditioning, graft)))
    chosen.setdefault("budget_policy", "fixed")
    budget = chosen.setdefault("budget", DEFAULT_BUDGET)
    block_length = head.block_size or max(2, budget)
    deepest = _deepest(block_length, budget, graft)
    if "depth" in settled:
        _check_depth(*settled["depth"], deepest)
    chosen.setdefault("depth", deepest)
    retrieves = SUFFIX in (chosen["drafter"], graft)
    chosen.setdefault("suffix_cache", DEFAULT_SUFFIX_CACHE if retrieves else 0)
    # A root has no room for more children than the budget leaves.
    chosen.setdefault("width", max(1, min(DEFAULT_WIDTH, chosen["budget"] - 1)))
    return JetSpecConfig(**chosen, block_length=block_length, conditioning=conditioning)


def flag_settings(view: Any) -> dict[str, Any]:
    """Settings from the command line: SGLang's fields that are set, and ``--jetspec-*``."""
    settings = {}
    for name, (field, _) in SGLANG_FLAGS.items():
        value = getattr(view, field, None)
        if value is not None:
            settings[name] = value
    text = os.environ.get(FLAGS_ENV)
    if text:
        settings |= _checked_keys(_parse_object(text, FLAGS_ENV), FLAGS_ENV)
    cache = settings.get("suffix_cache")
    if isinstance(cache, str) and cache.isdecimal():  # a flag's value is text
        settings["suffix_cache"] = int(cache)
    return settings


def asked_drafter(view: Any) -> str | None:
    """The drafter that anyone names, by the same ranks as all settings; None if the head is to say it."""
    asked = [values["drafter"] for values, _ in _sources(view) if "drafter" in values]
    return asked[-1] if asked else None


def _sources(view: Any) -> tuple[tuple[dict[str, Any], str | None], ...]:
    """Settings and where they come from (None: flags), the lowest rank first."""
    return (
        (environment_settings(), CONFIG_ENV),
        (head_settings(view), "jetspec_config of the head"),
        (flag_settings(view), None),
    )


def head_settings(view: Any) -> dict[str, Any]:
    """``jetspec_config`` of the head's config.json; empty if the head has none."""
    folder = getattr(view, "speculative_draft_model_path", None)
    if not folder or not (file := Path(folder) / "config.json").is_file():
        return {}
    section = _parse_object(_read(file), str(file)).get("jetspec_config") or {}
    where = f"jetspec_config in {file}"
    if not isinstance(section, dict):
        raise ConfigError(f"{where} is {section!r}; write a JSON object with any of {', '.join(SETTINGS)}.")
    return _checked_keys(section, where)


def environment_settings() -> dict[str, Any]:
    """``JETSPEC_CONFIG``, given as JSON text or as the path of a JSON file."""
    text = os.environ.get(CONFIG_ENV, "").strip()
    if not text:
        return {}
    if text.startswith("{"):
        return _checked_keys(_parse_object(text, CONFIG_ENV), CONFIG_ENV)
    file = Path(text).expanduser()
    if not file.is_file():
        raise ConfigError(
            f"{CONFIG_ENV} is {text!r}, which is neither a JSON object nor an existing file; "
            f'set it to text like {{"budget": 32}} or to the path of such a file, or unset it.'
        )
    where = f"{CONFIG_ENV} ({file})"
    return _checked_keys(_parse_object(_read(file), where), where)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} can't be read ({error}); make it a readable UTF-8 JSON file.") from error


def _parse_object(text: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{where} is not valid JSON at line {error.lineno}, column {error.colno} ({error.msg}); "
            f"correct it there."
        ) from error
    if not isinstance(value, dict):
        raise ConfigError(f"{where} holds a JSON {type(value).__name__}; make it an object in braces.")
    return value


def _checked_keys(settings: dict[str, Any], where: str) -> dict[str, Any]:
    unknown = sorted(set(settings) - set(SETTINGS))
    if unknown:
        raise ConfigError(
            f"{where} has the unknown key{'s' * (len(unknown) > 1)} {', '.join(unknown)}; "
            f"use only {', '.join(SETTINGS)}."
        )
    return settings


def _flag(name: str) -> str:
    return SGLANG_FLAGS[name][1] if name in SGLANG_FLAGS else JETSPEC_FLAGS[name]


def _deepest(block_length: int, budget: int, graft: str) -> int:
    """Drafts that a round can accept at most: what the head drafts, or a grafted chain of the whole budget."""
    return max(block_length, budget if graft != "none" else 0) - 1


def _check(name: str, value: Any, origin: str) -> None:
    if name in NAMED:
        _check_name(name, value, origin)
    elif name != "depth":
        low, high, why = {
            "budget": (1, MAX_BUDGET, "nodes of a tree, root included, and 1 is plain decoding"),
            "width": (1, MAX_WIDTH, "children of a node"),
            "suffix_cache": (
                0,
                MAX_SUFFIX_CACHE,
                "tokens of finished requests that are remembered, and 0 is none",
            ),
        }[name]
        _check_number(name, value, origin, low, high, why)


def _check_depth(value: Any, origin: str, deepest: int) -> None:
    _check_number("depth", value, origin, 1, deepest, f"{deepest} tokens can be drafted after the anchor")


def _check_number(name: str, value: Any, origin: str, low: int, high: int, why: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} is {value!r} ({origin}); give a whole number from {low} to {high}.")
    if not low <= value <= high:
        raise ConfigError(f"{name} is {value} ({origin}); give {low} to {high}: {why}.")


def _check_name(name: str, value: Any, origin: str) -> None:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{name} is {value!r} ({origin}); give a name in quotes.")
    if name == "scoring":  # a name, maybe with options
        from .tree import scoring_policy

        try:
            scoring_policy(value)
        except ValueError as error:
            raise ConfigError(f"{error} ({origin}).") from None
        return
    known = GRAFTS if name == "graft" else known_names(name)
    if value not in known:
        raise ConfigError(f"{name} {value!r} ({origin}) is unknown; give one of {', '.join(known)}.")


def _check_drafter(settled: dict[str, tuple[Any, str]], kind: str, conditioning: str, graft: str) -> None:
    """Refuse a drafter that computes another kind of head than `kind`, and settings that it doesn't do."""
    drafter, origin = settled["drafter"]
    if drafter in HEADS and drafter != kind:
        raise ConfigError(
            f"drafter {drafter} ({origin}) drafts with {HEADS[drafter]}, but this head is {HEADS[kind]}; "
            f"leave the setting out or give {kind}."
        )
    if drafter == SUFFIX and graft != "none":
        origin = settled["graft"][1]
        raise ConfigError(
            f"graft {graft} ({origin}) needs a head to graft onto; leave it out or give a head."
        )
    if (
        drafter != SUFFIX
        and graft == "none"
        and settled.get("suffix_cache", (0, ""))[1] == _flag("suffix_cache")
    ):
        raise ConfigError(
            f"{_flag('suffix_cache')} has no effect without retrieval; leave it out or add {_flag('graft')} {SUFFIX}."
        )
    for name, known in names_of(trees_of(conditioning, graft)).items():
        if name in settled and settled[name][0] not in known:
            value, origin = settled[name]
            corrected = conditioning == "path" and kind in ("causal_parallel", "diffusion")
            with_it = " with a path corrector" if corrected else ""
            with_it += f" with {_flag('graft')} {graft}" if graft != "none" else ""
            raise ConfigError(
                f"{name} {value!r} ({origin}) is not for the drafter {drafter}{with_it}; "
                f"give {' or '.join(known)}."
            )


def trees_of(conditioning: str, graft: str) -> str:
    """What trees are made of: a head's rows, as `DrafterSpec.conditioning` says, or nodes some of which are
    "retrieved"."""
    return "retrieved" if graft != "none" else conditioning


def names_of(trees: str) -> dict[str, list[str]]:
    """What ``expansion``, ``acceptance`` and, where it is limited, ``scoring`` can be with such trees."""
    if trees == "path":  # a row depends on its node, so it must be drafted before it is drawn from
        return {"expansion": ["optimal"], "acceptance": ["match"]}
    if trees == "retrieved":  # found, not drawn, and ranked by their chance to be accepted alone
        return {"expansion": ["optimal"], "acceptance": ["match"], "scoring": ["accum_logp"]}
    return {name: known_names(name) for name in ("expansion", "acceptance")}


def default_acceptance(drafter: str, trees: str) -> str:
    """The rule that accepts most (docs/results/acceptance), if the drafter is known to give rows to draw from."""
    return "rejection" if drafter in HEADS and "rejection" in names_of(trees)["acceptance"] else "match"


def known_names(name: str) -> list[str]:
    """What ``drafter``, ``expansion``, ``acceptance`` or ``budget_policy`` can be."""
    if name == "drafter":
        from .drafters.registry import DRAFTERS

        return sorted(DRAFTERS)
    if name == "expansion":
        from .tree import EXPANSIONS

        return list(EXPANSIONS)
    if name == "acceptance":
        from .tree import ACCEPTANCES

        return list(ACCEPTANCES)
    return list(BUDGET_POLICIES)
