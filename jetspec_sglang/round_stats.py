"""Counters of decoding rounds: accept length and the share of each stage."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

STAGES = ("draft", "build", "verify", "accept", "commit")


class RoundStats:
    """Sums since the server started, kept in the scheduler process.

    Stage times are host wall-clock seconds. On the CPU they are what the stages cost; on an accelerator, which
    runs behind the host, they are what the host spends launching them.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.rounds = 0
        self.requests = 0  # summed over rounds
        self.accepted_drafts = 0
        self.histogram: dict[int, int] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - began

    def count(self, accepted_drafts: list[int]) -> None:
        """One verified batch: drafts accepted for each of its requests, the bonus not counted."""
        self.rounds += 1
        self.requests += len(accepted_drafts)
        self.accepted_drafts += sum(accepted_drafts)
        for drafts in accepted_drafts:
            self.histogram[drafts] = self.histogram.get(drafts, 0) + 1

    def summary(self) -> dict:
        """τ = 1 + accepted drafts / rounds of a request; plain values, ready for JSON."""
        return {
            "rounds": self.rounds,
            "request_rounds": self.requests,
            "tau": 1 + self.accepted_drafts / self.requests if self.requests else None,
            "accepted_drafts_histogram": {str(k): v for k, v in sorted(self.histogram.items())},
            "stage_seconds": dict(self.seconds),
        }
