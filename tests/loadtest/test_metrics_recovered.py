"""A server whose service time is known: real Locust runs recover every metric, whatever a piece of the stream holds.

One run an API plays prompts that set the number of tokens a piece, so that all of them meet the same conditions.
"""

import json

import pytest
from valid_run import valid_run

from jetspec_sglang.loadtest.config import LoadConfig
from jetspec_sglang.loadtest.metrics import Slo, summarise
from jetspec_sglang.loadtest.records import Request, Run

PREFILL, PACE, TOKENS = 1.0, 0.025, 33
E2E = PREFILL + PACE * (TOKENS - 1)
RATE, DURATION = 10, 5
CHUNKS = (1, 2, 4, 8, 16)  # each divides the 32 tokens after the first
WITHIN = {"rel": 0.02}


@pytest.fixture(scope="module", params=["generate", "chat"])
def recorded(request, tmp_path_factory, start_fake_llm) -> tuple[Run, list[Request]]:
    folder = tmp_path_factory.mktemp(request.param)
    prompts = folder / "prompts.jsonl"
    lines = [{"turns": [f"chunk={n}"], "domain": f"chunk-{n}"} for n in CHUNKS]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = LoadConfig(
        url=start_fake_llm(prefill=PREFILL, pace=PACE),
        api=request.param,
        arrivals="constant",
        rate=RATE,
        warmup_s=2,
        duration_s=DURATION,
        max_tokens=TOKENS,
        workload=str(prompts),
    )
    return valid_run(config, folder)


def of_chunk(requests: list[Request], chunk: int) -> list[Request]:
    return [r for r in requests if r.domain == f"chunk-{chunk}"]


def test_run_is_valid_and_complete(recorded):
    done, requests = recorded
    assert done.reasons == []
    assert len(requests) == len(done.schedule_s) == RATE * (2 + DURATION)
    assert all(r.ok and r.status == 200 and r.completion_tokens == TOKENS for r in requests)
    assert done.server_before["flushes"] >= 1
    assert done.server_after["answers"] - done.server_before["answers"] == len(requests)
    assert "api_key" not in done.server_before


@pytest.mark.parametrize("chunk", CHUNKS)
def test_latencies(recorded, chunk):
    done, requests = recorded
    found = summarise(of_chunk(requests, chunk), done)
    assert found["sent"] == found["completed"] == RATE * DURATION / len(CHUNKS)
    for statistic in ("mean", "p50", "p90"):
        assert found["ttft_s"][statistic]["value"] == pytest.approx(PREFILL, **WITHIN)
        assert found["tpot_s"][statistic]["value"] == pytest.approx(PACE, **WITHIN)
        assert found["e2e_s"][statistic]["value"] == pytest.approx(E2E, **WITHIN)
        assert found["tok_s_user"][statistic]["value"] == pytest.approx(1 / PACE, **WITHIN)
    for statistic in ("mean", "p50"):
        assert found["itl_s"][statistic]["value"] == pytest.approx(PACE, **WITHIN)
        assert found["chunk_gap_s"][statistic]["value"] == pytest.approx(chunk * PACE, **WITHIN)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_counts(recorded, chunk):
    done, requests = recorded
    found = summarise(of_chunk(requests, chunk), done)
    assert found["completion_tokens"] == TOKENS * found["completed"]
    assert found["prompt_tokens"] == 7 * found["completed"]
    assert found["cached_share"]["value"] == pytest.approx(3 / 7)
    if chunk == 1:
        assert found["tau"] is found["nodes_per_round"] is found["wasted_share"] is None
    else:
        assert found["tau"]["value"] == chunk
        assert found["nodes_per_round"]["value"] == 20
        assert found["wasted_share"]["value"] == pytest.approx(1 - chunk / 20)
        assert sum(found["histogram"]) == found["histogram"][chunk - 1] == 32 / chunk * found["completed"]


def test_flow(recorded):
    done, requests = recorded
    found = summarise(requests, done)
    assert found["offered_rps"] == RATE
    assert found["completed_rps"] == pytest.approx(RATE, **WITHIN)
    assert found["tok_s"] == pytest.approx(RATE * TOKENS, **WITHIN)
    assert found["error_rate"]["value"] == 0


@pytest.mark.parametrize(
    ("bound", "share"),
    [
        (Slo(ttft_s=1.05 * PREFILL, tpot_s=1.05 * PACE, e2e_s=1.05 * E2E), 1),
        (Slo(ttft_s=0.95 * PREFILL), 0),
        (Slo(tpot_s=0.95 * PACE), 0),
        (Slo(e2e_s=0.95 * E2E), 0),
    ],
)
def test_goodput(recorded, bound, share):
    done, requests = recorded
    found = summarise(requests, done, slo=bound)
    assert found["attainment"]["value"] == pytest.approx(share, abs=0.02)
    assert found["goodput_rps"]["value"] == pytest.approx(share * RATE, abs=0.02 * RATE)


def test_closed_loop_flow(tmp_path, start_fake_llm):
    """Three users, one answer after another: tokens and answers a second follow from the service time."""
    config = LoadConfig(
        url=start_fake_llm(prefill=0.1, pace=PACE, chunk=4),
        arrivals="closed",
        concurrency=3,
        warmup_s=1,
        duration_s=8,
        max_tokens=TOKENS,
        flush=False,
    )
    done, requests = valid_run(config, tmp_path)
    found = summarise(requests, done)
    service = 0.1 + PACE * (TOKENS - 1)
    assert done.schedule_s is None
    assert done.server_before["flushes"] == 0
    assert found["tok_s"] == pytest.approx(
        3 * TOKENS / service, rel=0.05
    )  # answers cut by the window's edges
    assert most_at_once(requests) == 3


def most_at_once(requests: list[Request]) -> int:
    changes = sorted([(r.start_s, 1) for r in requests] + [(r.end_s, -1) for r in requests])
    running = [0]
    for _, change in changes:
        running.append(running[-1] + change)
    return max(running)


def test_without_usage_in_every_chunk(tmp_path, start_fake_llm):
    """TPOT is from the final usage all the same; what would need the tokens of each piece is left out."""
    config = LoadConfig(
        url=start_fake_llm(prefill=0.2, pace=PACE, chunk=4, last_usage_only=True),
        api="chat",
        arrivals="constant",
        rate=5,
        warmup_s=0,
        duration_s=2,
        max_tokens=TOKENS,
    )
    done, requests = valid_run(config, tmp_path)
    found = summarise(requests, done)
    assert found["completed"] == 10
    assert found["tpot_s"]["p50"]["value"] == pytest.approx(PACE, **WITHIN)
    assert found["chunk_gap_s"]["p50"]["value"] == pytest.approx(4 * PACE, **WITHIN)
    assert found["itl_s"] is None
