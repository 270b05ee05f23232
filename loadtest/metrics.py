"""Every published number of a run, defined as a function of its raw records. Standard library only.

Latencies count from when a request was *due*, not from when it was sent: a request that waited because the server
(or the generator) was late has waited all the same. Warm-up requests and failed ones have no latency here; failed
ones count as errors and never meet an SLO.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from .bootstrap import RESAMPLES, distribution, draws, ratio
from .records import Request, Run


@dataclass(frozen=True)
class Slo:
    """Upper bounds in seconds; None is no bound."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    @classmethod
    def of(cls, run: Run) -> "Slo":
        """The bounds that the run was given."""
        return cls(**{name: run.config.get(f"slo_{name}") for name in ("ttft_s", "tpot_s", "e2e_s")})


def ttft(request: Request) -> float | None:
    """Time to first token: from due to the first piece of the stream that brought tokens. Queueing is in it."""
    return None if request.first_token_s is None else request.first_token_s - request.scheduled_s


def e2e(request: Request) -> float:
    """From due to the end of the stream."""
    return request.end_s - request.scheduled_s


def lag(request: Request) -> float:
    """From due to the moment when the client began to connect: the generator's own lateness."""
    return request.start_s - request.scheduled_s


def tpot(request: Request) -> float | None:
    """Time per output token after the first: (end - first token) / (completion tokens - first piece's tokens).

    Completion tokens are the server's count. SGLang's first piece brings one token, so this is the usual
    (e2e - TTFT) / (n - 1); where it brings k, the time was spent on n - k tokens. None with nothing after it.
    """
    if request.completion_tokens is None or request.first_token_s is None:
        return None
    later = request.completion_tokens - (request.chunks[0][1] or 1)
    return (request.end_s - request.first_token_s) / later if later > 0 else None


def speed(request: Request) -> float | None:
    """tok/s that one user sees while the answer is written: 1 / TPOT."""
    pace = tpot(request)
    return 1 / pace if pace else None


def chunk_gaps(request: Request) -> list[tuple[float, float]]:
    """`(seconds, 1)` from each piece of the stream to the next: what a reader sees as stutter."""
    times = [time for time, _ in request.chunks]
    return [(after - before, 1.0) for before, after in pairwise(times)]


def token_gaps(request: Request) -> list[tuple[float, float]]:
    """`(seconds a token, tokens)`, inter-token latency: a gap before a piece of n tokens is n gaps of 1/n of it.

    Empty where the server did not say how many tokens each piece brought.
    """
    gaps = chunk_gaps(request)
    counts = [tokens for _, tokens in request.chunks[1:]]
    if None in counts:
        return []
    return [(gap / n, float(n)) for (gap, _), n in zip(gaps, counts, strict=True) if n]


def arrived_tokens(request: Request, window: Sequence[float]) -> float:
    """Completion tokens that reached the client within `[from, to)`.

    Pieces without a count share the completion tokens equally.
    """
    share = (request.completion_tokens or 0) / max(1, len(request.chunks))
    return sum(share if n is None else n for time, n in request.chunks if window[0] <= time < window[1])


def is_good(request: Request, slo: Slo) -> bool:
    """Complete, and within every given bound. An answer of one piece has no TPOT and meets any."""
    if not request.ok:
        return False
    bounds = ((ttft(request), slo.ttft_s), (tpot(request), slo.tpot_s), (e2e(request), slo.e2e_s))
    return all(bound is None or value is None or value <= bound for value, bound in bounds)


def wasted_nodes(request: Request) -> int | None:
    """Verified nodes that committed nothing: neither the root, which yields the bonus, nor an accepted draft."""
    if request.nodes is None or request.rounds is None or request.accepted_drafts is None:
        return None
    return request.nodes - request.rounds - request.accepted_drafts


def summarise(
    requests: Sequence[Request],
    run: Run,
    *,
    slo: Slo | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> dict[str, Any]:
    """All metrics of a run, ready for JSON; the same input gives the same output. `slo` defaults to the run's own.

    Distributions are as `bootstrap.distribution` says, ratios `{"value", "ci"}`; None where the server did not
    tell what is needed. Keys: `sent`, `completed`, `failed` (counts of measured requests); `offered_rps`,
    `completed_rps`, `goodput_rps`, `tok_s` (per second of the window); `attainment` (good / sent), `error_rate`;
    distributions `ttft_s`, `tpot_s`, `itl_s`, `chunk_gap_s`, `e2e_s`, `tok_s_user`, `lag_s`; `prompt_tokens`,
    `completion_tokens`, `cached_share`; `tau`, `nodes`, `wasted_share`, `histogram`.
    """
    sent = [request for request in requests if request.phase == "measure"]
    done = [request for request in sent if request.ok]
    length = run.window_s[1] - run.window_s[0]
    good = [is_good(request, slo or Slo.of(run)) for request in sent]
    of_sent, of_done = draws(len(sent), seed, resamples), draws(len(done), seed, resamples)
    ones = [1] * len(sent)
    return {
        "sent": len(sent),
        "completed": len(done),
        "failed": len(sent) - len(done),
        "window_s": length,
        "offered_rps": len(sent) / length,
        # Ends within the window, warm-up's too: the flow of the server, in a steady state as in an overload.
        "completed_rps": sum(r.ok and run.window_s[0] <= r.end_s < run.window_s[1] for r in requests)
        / length,
        "tok_s": sum(arrived_tokens(r, run.window_s) for r in requests) / length,
        "goodput_rps": _times(ratio(good, ones, of_sent), len(sent) / length),
        "attainment": ratio(good, ones, of_sent),
        "error_rate": ratio([not r.ok for r in sent], ones, of_sent),
        **{
            name: distribution([_weighted(metric(r)) for r in done], of_done)
            for name, metric in {"ttft_s": ttft, "tpot_s": tpot, "e2e_s": e2e, "tok_s_user": speed}.items()
        },
        "lag_s": distribution([_weighted(lag(r)) for r in sent], of_sent),
        "itl_s": distribution([token_gaps(r) for r in done], of_done),
        "chunk_gap_s": distribution([chunk_gaps(r) for r in done], of_done),
        "prompt_tokens": _total(r.prompt_tokens for r in done),
        "completion_tokens": _total(r.completion_tokens for r in done),
        "cached_share": _cached_share(done, of_done),
        **_acceptance(done, of_done, run),
    }


def _weighted(value: float | None) -> list[tuple[float, float]]:
    return [] if value is None else [(value, 1.0)]


def _times(estimate: dict | None, factor: float) -> dict | None:
    if estimate is None:
        return None
    return {"value": estimate["value"] * factor, "ci": [bound * factor for bound in estimate["ci"]]}


def _total(values: Any) -> int | None:
    """Their sum; None if one is unknown, as a part would look like the whole."""
    known = list(values)
    return None if None in known else sum(known)


def _cached_share(done: Sequence[Request], counts: list[list[int]]) -> dict | None:
    """Prompt tokens that the server found in its prefix cache / prompt tokens."""
    if any(r.cached_tokens is None or r.prompt_tokens is None for r in done):
        return None
    return ratio([r.cached_tokens or 0 for r in done], [r.prompt_tokens or 0 for r in done], counts)


def _acceptance(done: Sequence[Request], counts: list[list[int]], run: Run) -> dict[str, Any]:
    """τ = 1 + accepted drafts / rounds (a ratio of sums; the bonus counts); nodes a round; the share wasted.

    Requests of a single token have no round. Without any, the server does not speculate (or does not tell).
    """
    told = [r.rounds is not None and r.accepted_drafts is not None for r in done]
    if not any(told):
        return {"tau": None, "nodes_per_round": None, "wasted_share": None, "histogram": None}
    rounds = [r.rounds or 0 for r in done]
    committed = [(r.rounds or 0) + (r.accepted_drafts or 0) for r in done]
    return {
        "tau": ratio(committed, rounds, counts),
        **(_counted_nodes(run) or _told_nodes(done, rounds, counts)),
        "histogram": _histogram(done),
    }


def _told_nodes(done: Sequence[Request], rounds: list[int], counts: list[list[int]]) -> dict[str, Any]:
    """From the requests: SGLang reckons that each round verified as many nodes as the server's flags allow."""
    nodes = [r.nodes or 0 for r in done]
    if any(r.nodes is None for r in done if r.rounds):
        return {"nodes_per_round": None, "wasted_share": None}
    wasted = [wasted_nodes(r) or 0 for r in done]
    return {"nodes_per_round": ratio(nodes, rounds, counts), "wasted_share": ratio(wasted, nodes, counts)}


def _counted_nodes(run: Run) -> dict[str, Any] | None:
    """From the counters of a JETSPEC server, whose rounds differ in size: what they rose by during the run.

    Warm-up is in them, too. They have no interval (`ci` is None). None without such counters.
    """
    before, after = (_counters(info) for info in (run.server_before, run.server_after))
    if before is None or after is None:
        return None
    nodes, rounds, accepted = (now - then for now, then in zip(after, before, strict=True))
    if nodes <= 0 or rounds <= 0:
        return None
    wasted = (nodes - rounds - accepted) / nodes
    return {
        "nodes_per_round": {"value": nodes / rounds, "ci": None},
        "wasted_share": {"value": wasted, "ci": None},
    }


def _counters(info: dict[str, Any] | None) -> tuple[int, int, int] | None:
    """Nodes verified, rounds of requests, drafts accepted, since the server started."""
    states = (info or {}).get("internal_states") or [{}]
    told = states[0].get("jetspec")
    if not told:
        return None
    accepted = sum(int(drafts) * rounds for drafts, rounds in told["accepted_drafts_histogram"].items())
    return told["verified_nodes"], told["request_rounds"], accepted


def _histogram(done: Sequence[Request]) -> list[int] | None:
    """Rounds by accepted drafts, from 0 upwards."""
    rows = [r.histogram for r in done if r.histogram]
    if not rows:
        return None
    return [sum(row[k] for row in rows if k < len(row)) for k in range(max(map(len, rows)))]
