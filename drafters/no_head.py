"""What stands for the head where tokens are drafted without a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class NoHead:
    """Answers what the engine asks of a `head_config.Head`: it reads no features and keeps nothing.

    cache_tokens: tokens of finished requests that the drafter may remember.
    """

    drafter: str
    cache_tokens: int = 0
    conditioning: Literal["retrieved"] = "retrieved"
    block_size: int | None = None  # no block: as deep as the budget allows
    cached_layers: int = 0

    def taps(self, target_layers: int) -> tuple[int, ...]:
        return ()

    def slots(self, depth: int) -> int:
        return 0

    def rows(self, depth: int) -> int:
        return 0
