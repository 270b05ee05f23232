"""Prometheus counters beside SGLang's own, for servers started with `--enable-metrics`.

`1 + accepted / request_rounds` of two readings is the accept length τ between them; `rounds` by `nodes` shows what
an adaptive budget decides.
"""

from typing import Any


class RoundMetrics:
    """Counters under `/metrics`, names as SGLang writes its own."""

    def __init__(self) -> None:
        # Not before SGLang has said, in the environment, where the processes of a server meet.
        from prometheus_client import Counter

        self._rounds = Counter("jetspec:rounds", "Rounds, by nodes verified a request.", ["nodes"])
        self._nodes = Counter("jetspec:verified_nodes", "Rows of the target's verify forwards.")
        self._requests = Counter("jetspec:request_rounds", "Rounds, counted for each request in them.")
        self._accepted = Counter("jetspec:accepted_drafts", "Drafts that the target accepted.")

    def started(self, requests: int, nodes: int) -> None:
        """A round of `nodes` a request."""
        self._rounds.labels(str(nodes)).inc()
        self._nodes.inc(requests * nodes)

    def verified(self, accepted_drafts: list[int]) -> None:
        """Its outcome, a number for each request."""
        self._requests.inc(len(accepted_drafts))
        self._accepted.inc(sum(accepted_drafts))


class RetrievalMetrics:
    """What retrieval holds in memory, as of the last request that ended."""

    def __init__(self) -> None:
        from prometheus_client import Gauge

        self._bytes = Gauge("jetspec:suffix_bytes", "Host and device memory.", multiprocess_mode="mostrecent")
        self._tokens = Gauge(
            "jetspec:suffix_cache_tokens", "Of finished answers.", multiprocess_mode="mostrecent"
        )

    def holds(self, report: dict[str, Any]) -> None:
        """report: a `RetrievalDrafter`'s."""
        self._bytes.set(report["bytes"])
        self._tokens.set(report["cache_tokens"])
