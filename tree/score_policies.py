"""The built-in scoring policies, one class each; `score` says what a policy is and how text names one."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from .score import Scores

NEVER = float("-inf")


@dataclass(frozen=True)
class AccumLogp:
    """key = sum of log p along the path. The paper's default.

    If acceptance follows the drafter's probabilities, the expected number of accepted drafts is the sum of
    path probabilities over the nodes, hence the N most probable nodes are the best tree of N nodes.
    """

    needs_entropy: ClassVar[bool] = False

    def __call__(self, logprobs: Tensor, entropy: Tensor | None, levels: range) -> Scores:
        return Scores(logprobs, None)


@dataclass(frozen=True)
class Entropy:
    """key = H(row that produced the node), nats, over the full vocabulary; nothing adds up along the path.

    All candidates of a row share one key, so ranks decide among siblings. In the paper as an ablation: it
    branches where the drafter is least sure and is much worse than `accum_logp`.
    """

    needs_entropy: ClassVar[bool] = True

    def __call__(self, logprobs: Tensor, entropy: Tensor | None, levels: range) -> Scores:
        return Scores(torch.where(logprobs.isfinite(), 0.0, NEVER), entropy)


@dataclass(frozen=True)
class Hybrid:
    """key = sum of log p along the path + alpha * H(row that produced the node).

    The sign is positive: nodes of uncertain rows move up. Only the node's own row counts, its ancestors' do
    not. alpha = 0 is `accum_logp` and needs no entropy.
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        _check("alpha", self.alpha)

    @property
    def needs_entropy(self) -> bool:
        return self.alpha > 0

    def __call__(self, logprobs: Tensor, entropy: Tensor | None, levels: range) -> Scores:
        if entropy is None or not self.needs_entropy:
            return Scores(logprobs, None)
        return Scores(logprobs, self.alpha * entropy)


@dataclass(frozen=True)
class Top2Gap:
    """key = sum of log p, over the first candidates of each row only: few where the drafter is sure.

        cap = max(1, round(W * sigmoid(-beta * (log p[0] - log p[1] - gap))))     round half to even

    W is the width of the tree. A gap of `gap` nats leaves half of the row; `beta` says how sharply.
    """

    beta: float = 1.0
    gap: float = 1.0
    needs_entropy: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check("beta", self.beta)
        _check("gap", self.gap)

    def __call__(self, logprobs: Tensor, entropy: Tensor | None, levels: range) -> Scores:
        width = logprobs.shape[-1]
        if width == 1:
            return Scores(logprobs, None)
        lead = logprobs[..., 0] - logprobs[..., 1]
        caps = (width * torch.sigmoid(-self.beta * (lead - self.gap))).round().clamp(min=1)
        return Scores(_first(logprobs, caps), None)


@dataclass(frozen=True)
class RankHistogram:
    """key = sum of log p, over as many candidates of a level as were worth it when measured.

        cap[d] = max(1, number of ranks r < W with rate[d][r] >= threshold)

    `profile` is a JSON file, `{"depth_rank_accept": [[rate, …], …]}`: row d holds, for each rank r, how often
    the candidate of rank r of draft level d (0 right after the anchor) was accepted, from 0 to 1. Levels below
    the profile's last, and all of them at threshold 0, are not capped.
    """

    profile: str
    threshold: float = 0.02
    rates: tuple[tuple[float, ...], ...] = field(init=False, repr=False, compare=False)
    needs_entropy: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check("threshold", self.threshold)
        object.__setattr__(self, "rates", _read_profile(self.profile))

    def __call__(self, logprobs: Tensor, entropy: Tensor | None, levels: range) -> Scores:
        return Scores(_first(logprobs, self._caps(levels, logprobs.shape[-1], logprobs.device)), None)

    @lru_cache(maxsize=64)  # noqa: B019 - policies live as long as the process; no copy to the device a round
    def _caps(self, levels: range, width: int, device: torch.device) -> Tensor:
        return torch.tensor([self.cap(level, width) for level in levels], device=device)

    def cap(self, level: int, width: int) -> int:
        """Candidates that a row of this level keeps."""
        if self.threshold == 0 or level >= len(self.rates):
            return width
        return max(1, sum(rate >= self.threshold for rate in self.rates[level][:width]))


def _first(logprobs: Tensor, caps: Tensor) -> Tensor:
    """The first `caps` candidates of each row, and -inf for the others. caps: broadcasts to `[B, R]`."""
    ranks = torch.arange(logprobs.shape[-1], device=logprobs.device)
    return torch.where(ranks < caps[..., None], logprobs, NEVER)


def _check(name: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} is {value}, but must be a finite number >= 0")


def _read_profile(path: str) -> tuple[tuple[float, ...], ...]:
    form = '{"depth_rank_accept": [[rate, …], …]} with rates from 0 to 1'
    try:
        rates = json.loads(Path(path).read_text(encoding="utf-8"))["depth_rank_accept"]
        rates = tuple(tuple(float(rate) for rate in row) for row in rates)
        if not rates or not all(0 <= rate <= 1 for row in rates for rate in row):
            raise ValueError("empty, or a rate outside 0..1")
    except OSError as error:
        raise ValueError(f"profile {path!r} can't be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"profile {path!r} is not JSON of the form {form}") from None
    return rates
