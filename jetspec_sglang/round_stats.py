"""Counters of decoding rounds: accept length and the share of each stage."""

from .metrics import RoundMetrics
from .stage_clock import STAGES


class RoundStats:
    """Sums since the server started, kept in the scheduler process; `metrics` gets a copy."""

    def __init__(self, metrics: RoundMetrics | None = None) -> None:
        self._metrics = metrics
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.rounds = 0
        self.requests = 0  # summed over rounds
        self.accepted_drafts = 0
        self.verified_nodes = 0  # rows of the target's forwards, padding included
        self.histogram: dict[int, int] = {}

    def add_stages(self, seconds: dict[str, float]) -> None:
        """Seconds of one round by stage."""
        for name, value in seconds.items():
            self.seconds[name] += value

    def start(self, requests: int, nodes: int) -> None:
        """A round that verifies `nodes` for each of its requests."""
        self.verified_nodes += requests * nodes
        if self._metrics:
            self._metrics.started(requests, nodes)

    def count(self, accepted_drafts: list[int]) -> None:
        """One verified batch: drafts accepted for each of its requests, the bonus not counted."""
        self.rounds += 1
        self.requests += len(accepted_drafts)
        self.accepted_drafts += sum(accepted_drafts)
        for drafts in accepted_drafts:
            self.histogram[drafts] = self.histogram.get(drafts, 0) + 1
        if self._metrics:
            self._metrics.verified(accepted_drafts)

    def summary(self) -> dict:
        """τ = 1 + accepted drafts / rounds of a request; plain values, ready for JSON."""
        return {
            "rounds": self.rounds,
            "request_rounds": self.requests,
            "tau": 1 + self.accepted_drafts / self.requests if self.requests else None,
            "accepted_drafts_histogram": {str(k): v for k, v in sorted(self.histogram.items())},
            "verified_nodes": self.verified_nodes,
            "stage_seconds": dict(self.seconds),
        }
