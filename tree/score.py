"""Scoring policies: what ranks the nodes of a tree.

A policy looks at rows of candidates and gives *edge scores* and, if it likes, a *bonus* per row. For a node
that rank w of a row produced,

    score = the parent's score + edge[w]        fp32, added up along the path; 0 at the root
    key   = score + bonus of that row           fp32, not handed on to the node's children

and the builders keep the nodes of largest key, best first. A policy is therefore tensor algebra on rows, never
a branch inside a builder, and works on rows of any kind: one a depth, or one a node.

Contract: edge scores are fp32, <= 0 and non-increasing along W; -inf (or NaN) ends a row, its candidate and
those after it are never drafted. Without a bonus a node then never outranks its parent or an earlier sibling.
With one it may outrank its parent, and follows right behind it.
"""

from __future__ import annotations

import inspect
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from .proposal import DraftProposal
from .registry import Registry

DEFAULT_SCORING = "accum_logp"


class Scores(NamedTuple):
    """edges: `[B, R, W]` fp32. bonus: `[B, R]` fp32, or None where every bonus is 0."""

    edges: Tensor
    bonus: Tensor | None


class ScoringPolicy(Protocol):
    """Scores for rows of candidates. Hashable and without state: the text that names it says all of it."""

    @property
    def needs_entropy(self) -> bool:
        """Whether drafters must fill `DraftProposal.entropy`."""

    def __call__(self, logprobs: Tensor, entropy: Tensor | None, levels: range) -> Scores:
        """logprobs `[B, R, W]` and entropy `[B, R]` (None unless needed) as in `DraftProposal`.

        `levels` says which row of the draft each of the R rows is, 0 right after the anchor: one number a row,
        or a single one if all R are of the same level.
        """


SCORING = Registry(
    "scoring policy",
    {
        "accum_logp": "jetspec_sglang.tree.score_policies:AccumLogp",
        "entropy": "jetspec_sglang.tree.score_policies:Entropy",
        "hybrid": "jetspec_sglang.tree.score_policies:Hybrid",
        "rank_histogram": "jetspec_sglang.tree.score_policies:RankHistogram",
        "top2gap": "jetspec_sglang.tree.score_policies:Top2Gap",
    },
    entry_point_group="jetspec.scoring",
)
"""What a name stands for is called with the settings of the text as keyword arguments, annotated float, int or
str, and returns a `ScoringPolicy`. A ValueError it raises is shown to the user."""


class ScoredRows(NamedTuple):
    """Rows with their scores: what builders take. Shapes as in `DraftProposal` and `Scores`."""

    token_ids: Tensor
    logprobs: Tensor
    edges: Tensor
    bonus: Tensor | None


def score_rows(policy: ScoringPolicy, proposal: DraftProposal, levels: range) -> ScoredRows:
    """Rows of a proposal as `policy` scores them. Raises ValueError if it needs entropy and there is none."""
    if policy.needs_entropy and proposal.entropy is None:
        raise ValueError(
            f"{policy} needs the entropy of every row, and the drafter gave none; "
            f"fill DraftProposal.entropy or choose another scoring policy"
        )
    return ScoredRows(
        proposal.token_ids, proposal.logprobs, *policy(proposal.logprobs, proposal.entropy, levels)
    )


@lru_cache(maxsize=256)
def scoring_policy(text: str) -> ScoringPolicy:
    """The policy that `NAME` or `NAME:key=value,key=value` describes. Cached, files it names included.

    Raises ValueError, in one sentence that says what is possible: an unknown name or key, a value that does
    not fit, a key without a value.
    """
    name, _, settings = text.partition(":")
    factory = SCORING.get(name)
    parameters = inspect.signature(factory, eval_str=True).parameters
    values: dict[str, Any] = {}
    for setting in settings.split(",") if settings else []:
        key, equals, value = setting.partition("=")
        if not equals or not value:
            raise ValueError(f"scoring policy {name!r}: {setting!r} is not of the form key=value")
        if key not in parameters:
            known = f"its keys are {', '.join(parameters)}" if parameters else "it has no keys"
            raise ValueError(f"scoring policy {name!r} has no key {key!r}; {known}")
        if key in values:
            raise ValueError(f"scoring policy {name!r}: {key} is given twice")
        values[key] = _parse(name, key, value, parameters[key].annotation)
    missing = [key for key, p in parameters.items() if p.default is p.empty and key not in values]
    if missing:
        raise ValueError(f"scoring policy {name!r} needs {missing[0]}=…, as in {name}:{missing[0]}=…")
    try:
        return factory(**values)
    except ValueError as error:
        raise ValueError(f"scoring policy {name!r}: {error}") from None


def _parse(name: str, key: str, value: str, kind: type) -> Any:
    try:
        return kind(value)
    except ValueError:
        wanted = {int: "whole number", float: "number"}.get(kind, kind.__name__)
        raise ValueError(f"scoring policy {name!r}: {key} is {value!r}, not a {wanted}") from None
