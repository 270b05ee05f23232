"""Each definition on records made by hand."""

import pytest
from requests_made import failed, made, made_run

from jetspec_sglang.loadtest import metrics
from jetspec_sglang.loadtest.metrics import Slo, summarise

FIRST_PIECE_OF_TWO = {"chunks": [[0.1, 2], [0.2, 1], [0.22, 1]], "end_s": 0.22}


def test_latency_counts_from_when_it_was_due():
    request = made(2.0)
    assert metrics.ttft(request) == pytest.approx(0.1)
    assert metrics.e2e(request) == pytest.approx(0.22)
    assert metrics.lag(request) == pytest.approx(0.01)


def test_tpot_is_over_tokens_after_the_first_piece():
    assert metrics.tpot(made()) == pytest.approx(0.12 / 3)
    assert metrics.tpot(made(**FIRST_PIECE_OF_TWO)) == pytest.approx(0.12 / 2)
    assert metrics.tpot(made(completion_tokens=1)) is None
    assert metrics.tpot(made(completion_tokens=None)) is None
    assert metrics.speed(made()) == pytest.approx(3 / 0.12)


def test_tpot_takes_tokens_from_usage_not_from_pieces():
    uncounted = [[0.1, None], [0.16, None]]
    assert metrics.tpot(made(chunks=uncounted, completion_tokens=7)) == pytest.approx(0.12 / 6)


def test_gaps():
    assert metrics.chunk_gaps(made()) == [(pytest.approx(0.04), 1.0), (pytest.approx(0.06), 1.0)]
    assert metrics.token_gaps(made()) == [(pytest.approx(0.02), 2.0), (pytest.approx(0.06), 1.0)]
    assert metrics.token_gaps(made(chunks=[[0.1, None], [0.16, None]])) == []


def test_tokens_arrive_in_the_window_or_not():
    assert metrics.arrived_tokens(made(), [0.0, 0.2]) == 3  # the last piece comes at 0.2
    assert metrics.arrived_tokens(made(), [0.14, 0.3]) == 3
    uncounted = made(chunks=[[0.1, None], [0.16, None]], completion_tokens=7)
    assert metrics.arrived_tokens(uncounted, [0.0, 0.15]) == 3.5


@pytest.mark.parametrize(
    ("slo", "good"),
    [
        (Slo(), True),
        (Slo(ttft_s=0.11, tpot_s=0.05, e2e_s=0.23), True),
        (Slo(ttft_s=0.09), False),
        (Slo(tpot_s=0.03), False),
        (Slo(e2e_s=0.21), False),
        (Slo(ttft_s=0.11, e2e_s=0.21), False),
    ],
)
def test_good(slo, good):
    assert metrics.is_good(made(), slo) is good
    assert metrics.is_good(failed(), slo) is False


def test_one_token_has_no_tpot_and_meets_any_bound_on_it():
    assert metrics.is_good(made(completion_tokens=1), Slo(tpot_s=1e-9))


def test_wasted_nodes_are_neither_roots_nor_accepted():
    assert metrics.wasted_nodes(made(nodes=40, rounds=2, accepted_drafts=5)) == 33
    assert metrics.wasted_nodes(made(nodes=None, rounds=2, accepted_drafts=5)) is None


def test_summary_counts_failures_and_leaves_warm_up_out():
    requests = [made(0.0, phase="warmup"), made(1.0), made(2.0), made(3.0, end_s=5.0), failed(4.0)]
    found = summarise(requests, made_run(), slo=Slo(e2e_s=1.0))
    assert (found["sent"], found["completed"], found["failed"]) == (4, 3, 1)
    assert found["error_rate"]["value"] == 0.25
    assert found["attainment"]["value"] == 0.5
    assert found["goodput_rps"]["value"] == pytest.approx(0.2)
    assert found["offered_rps"] == 0.4
    assert found["completed_rps"] == 0.4  # the warm-up's answer ends in the window, too
    assert found["tok_s"] == 1.6
    assert found["ttft_s"]["n"] == 3
    assert found["e2e_s"]["p50"]["value"] == pytest.approx(0.22)
    assert found["e2e_s"]["p99"]["value"] == pytest.approx(2.0)
    assert found["cached_share"]["value"] == 0.5


def test_bounds_default_to_the_runs_own():
    run = made_run(config={"slo_ttft_s": 0.05, "slo_tpot_s": None, "slo_e2e_s": None})
    assert summarise([made()], run)["attainment"]["value"] == 0


def test_acceptance_is_a_ratio_of_sums():
    spoken = {"rounds": 1, "accepted_drafts": 3, "nodes": 8, "histogram": [0, 0, 0, 1]}
    silent = {"rounds": 9, "accepted_drafts": 0, "nodes": 72, "histogram": [9]}
    single = {"rounds": None, "accepted_drafts": None, "nodes": None, "completion_tokens": 1}
    found = summarise([made(**spoken), made(**silent), made(**single)], made_run())
    assert found["tau"]["value"] == pytest.approx(1.3)  # not the mean of 4 and 1
    assert found["nodes_per_round"]["value"] == 8
    assert found["wasted_share"]["value"] == pytest.approx(67 / 80)
    assert found["histogram"] == [9, 0, 0, 1]


def jetspec_info(nodes: int, rounds: int, histogram: dict[str, int]) -> dict:
    counters = {"verified_nodes": nodes, "request_rounds": rounds, "accepted_drafts_histogram": histogram}
    return {"internal_states": [{"jetspec": counters}]}


def test_nodes_of_a_jetspec_server_are_what_it_counted():
    """An adaptive budget uses fewer nodes than the flags allow, which is what the requests are told."""
    run = made_run(
        server_before=jetspec_info(100, 10, {"0": 8, "2": 2}),
        server_after=jetspec_info(160, 20, {"0": 8, "2": 12}),
    )
    found = summarise([made(rounds=10, accepted_drafts=20, nodes=320)], run)
    assert found["tau"]["value"] == 3
    assert found["nodes_per_round"] == {"value": 6, "ci": None}
    assert found["wasted_share"]["value"] == pytest.approx((60 - 10 - 20) / 60)


def test_a_server_that_does_not_speculate_has_no_tau():
    found = summarise([made()], made_run())
    assert found["tau"] is found["wasted_share"] is found["histogram"] is None


def test_same_records_same_summary():
    requests = [made(0.1 * n, end_s=0.1 * n + 0.22 + 0.01 * n) for n in range(20)]
    assert summarise(requests, made_run()) == summarise(requests, made_run())
    assert summarise(requests, made_run(), seed=1) != summarise(requests, made_run())


def test_no_requests_at_all():
    found = summarise([], made_run())
    assert found["sent"] == 0
    assert found["ttft_s"] is found["attainment"] is found["tau"] is None
