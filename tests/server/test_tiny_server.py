"""Behaviour of a JETSPEC server under everything a scheduler does, on tiny random models in fp32.

SGLang's own idle check kills the scheduler when a slot leaks, so a server that is alive and idle is a whole pool.
"""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from oracle import Oracle

pytestmark = pytest.mark.server

CONTEXT = 512
COMMON = ("--skip-tokenizer-init", "--dtype", "float32", "--chunked-prefill-size", "64", "--random-seed", "1")


def greedy(server, ids: list[int], new_tokens: int, **request) -> dict:
    params = {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True}
    return server.generate(input_ids=ids, sampling_params=params, **request)


@pytest.fixture(scope="module")
def plain(serve, models):
    return serve("--model-path", models["target"], *COMMON, "--max-total-tokens", "4096")


@pytest.fixture(scope="module", params=["overlap", "sync"])
def jetspec(request, serve, models):
    """A small pool, small chunks, a 16-node tree; overlap schedule on and off."""
    more = () if request.param == "overlap" else ("--disable-overlap-schedule",)
    server = serve(
        *("--model-path", models["target"], *COMMON, "--max-total-tokens", "1400", *more),
        *("--speculative-algorithm", "JETSPEC", "--speculative-draft-model-path", models["head"]),
    )
    yield server
    assert settled(server), server.tail()
    server.stop()


def settled(server) -> bool:
    """It still answers after having been idle, which is when SGLang looks for leaks."""
    return server.alive() and len(greedy(server, [7, 8, 9], 2)["output_ids"]) == 2


def prompts(seed: int) -> list[list[int]]:
    """Short, long, one-token, repeated and prefix-sharing prompts."""
    rng = random.Random(seed)
    rows = [[rng.randrange(5, 500) for _ in range(length)] for length in (1, 2, 5, 17, 64, 65, 130, 300)]
    return [*rows, rows[5], rows[5] + rows[2], rows[6][:70] + rows[3]]


def test_many_requests_at_once_are_identical(plain, jetspec):
    """More than fit into the pool: they queue, share prefixes and leave at different times."""
    cases = [(ids, 5 + 7 * i) for i, ids in enumerate(prompts(0))]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda case: greedy(jetspec, *case)["output_ids"], cases))
        want = list(pool.map(lambda case: greedy(plain, *case)["output_ids"], cases))
    assert got == want


def test_rounds_are_those_of_the_method(models, jetspec):
    """Not only the text (which no drafter can change) but every accepted draft is what plain torch computes."""
    oracle = Oracle(models["target"], models["head"])
    for ids in prompts(9)[2:6]:
        answer = greedy(jetspec, ids, 40)
        tokens, rounds, _ = oracle.decode(ids, 40, budget=16, width=15)
        assert answer["output_ids"] == tokens
        assert answer["meta_info"]["spec_verify_ct"] == len(rounds)
        assert answer["meta_info"]["spec_num_correct_drafts"] == sum(rounds) - len(rounds)


def test_the_context_edge_ends_in_length(plain, jetspec):
    ids = prompts(1)[7] + prompts(2)[6]  # 430 tokens
    for room in (CONTEXT - 1 - len(ids), CONTEXT - 3 - len(ids)):
        got, want = greedy(jetspec, ids, room), greedy(plain, ids, room)
        assert got["output_ids"] == want["output_ids"]
        assert got["meta_info"]["finish_reason"]["type"] == "length"


def test_stop_tokens_end_inside_a_round(plain, jetspec):
    ids = prompts(3)[3]
    stop = greedy(plain, ids, 12)["output_ids"][6]
    params = {"temperature": 0, "max_new_tokens": 12, "stop_token_ids": [stop]}
    got = jetspec.generate(input_ids=ids, sampling_params=params)
    want = plain.generate(input_ids=ids, sampling_params=params)
    assert got["output_ids"] == want["output_ids"]
    assert got["meta_info"]["finish_reason"] == want["meta_info"]["finish_reason"]


def test_logprobs_are_those_of_plain_decoding(plain, jetspec):
    ids = prompts(4)[4]
    request = {
        "return_logprob": True,
        "top_logprobs_num": 3,
        "logprob_start_len": 10,
        "token_ids_logprob": [5, 9],
    }
    got, want = (greedy(server, ids, 12, **request)["meta_info"] for server in (jetspec, plain))
    for name in ("input_token_logprobs", "output_token_logprobs"):
        assert [row[1] for row in got[name]] == [row[1] for row in want[name]]
        assert [row[0] for row in got[name]][1:] == pytest.approx(
            [row[0] for row in want[name]][1:], abs=1e-4
        )
    for name in ("output_top_logprobs", "output_token_ids_logprobs"):
        for ours, theirs in zip(got[name], want[name], strict=True):
            assert [token for _, token, _ in ours] == [token for _, token, _ in theirs]
            assert [value for value, _, _ in ours] == pytest.approx(
                [value for value, _, _ in theirs], abs=1e-4
            )


@pytest.mark.parametrize(
    "penalty",
    [{"frequency_penalty": 1.0}, {"repetition_penalty": 1.5}, {"presence_penalty": 1.0}],
    ids=lambda p: next(iter(p)),
)
def test_penalised_requests_are_identical(plain, jetspec, penalty):
    params = {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True, **penalty}
    ids = prompts(5)[2]
    assert (
        jetspec.generate(input_ids=ids, sampling_params=params)["output_ids"]
        == (plain.generate(input_ids=ids, sampling_params=params)["output_ids"])
    )


def test_logit_bias_is_applied_at_every_node(plain, jetspec):
    params = {
        "temperature": 0,
        "max_new_tokens": 10,
        "ignore_eos": True,
        "logit_bias": {"44": 6.0, "45": 5.5},
    }
    ids = prompts(6)[3]
    assert (
        jetspec.generate(input_ids=ids, sampling_params=params)["output_ids"]
        == (plain.generate(input_ids=ids, sampling_params=params)["output_ids"])
    )


def test_a_cached_prefix_drafts_as_well_as_a_fresh_one(jetspec):
    """The drafter's context of a radix hit is there: accepted drafts don't fall on the second request."""
    ids = prompts(7)[7]
    first, second = (greedy(jetspec, ids, 40) for _ in range(2))
    assert second["meta_info"]["cached_tokens"] > 200
    assert second["output_ids"] == first["output_ids"]
    drafts = [answer["meta_info"]["spec_num_correct_drafts"] for answer in (first, second)]
    assert drafts[1] >= drafts[0]


def test_aborted_requests_leave_nothing_behind(jetspec):
    """Clients that hang up in mid-answer, while others go on."""
    streaming = threading.Event()

    def hang_up(ids: list[int]) -> None:
        params = {"temperature": 0, "max_new_tokens": 100, "ignore_eos": True}
        body = {"input_ids": ids, "sampling_params": params, "stream": True}
        with requests.post(jetspec.url + "/generate", json=body, stream=True, timeout=60) as answer:
            next(answer.iter_lines())
            streaming.set()

    with ThreadPoolExecutor(4) as pool:
        gone = [pool.submit(hang_up, ids) for ids in prompts(8)[:6]]
        assert streaming.wait(120)
        stayed = pool.submit(greedy, jetspec, prompts(8)[6], 20)
        for future in gone:
            future.result()
        assert len(stayed.result()["output_ids"]) == 20
    assert settled(jetspec)


def used_slots(server) -> int:
    """Slots that are neither free nor given back, once the prefix cache is emptied (which only an idle server
    does; `timeout` is how long it may take to become idle)."""
    requests.post(server.url + "/flush_cache", params={"timeout": 60}, timeout=90).raise_for_status()
    loads = requests.get(server.url + "/v1/loads", timeout=60).json()["loads"]
    return sum(load["num_used_tokens"] for load in loads)


@pytest.mark.parametrize("seed", range(3))
def test_every_slot_comes_back(jetspec, seed):
    """Random mixes of short and long answers, prefix hits, hang-ups and more work than the pool holds."""
    rng = random.Random(seed)
    bank = prompts(20 + seed)

    def one(ids: list[int], new_tokens: int, leave_after: int | None) -> None:
        params = {"temperature": rng.choice([0, 0.8]), "max_new_tokens": new_tokens, "ignore_eos": True}
        body = {"input_ids": ids, "sampling_params": params, "stream": True}
        with requests.post(jetspec.url + "/generate", json=body, stream=True, timeout=120) as answer:
            for count, _ in enumerate(answer.iter_lines()):
                if leave_after is not None and count >= leave_after:
                    return

    jobs = [
        (rng.choice(bank)[: rng.randint(1, 300)], rng.randint(1, 80), rng.choice([None, None, 0, 3, 20]))
        for _ in range(24)
    ]
    with ThreadPoolExecutor(8) as pool:
        for job in [pool.submit(one, *job) for job in jobs]:
            job.result()
    assert used_slots(jetspec) == 0
    assert settled(jetspec)


def test_requests_that_jetspec_refuses_get_a_clear_error(jetspec):
    body = {
        "input_ids": [5, 6],
        "sampling_params": {"max_new_tokens": 4, "json_schema": '{"type": "object"}'},
    }
    answer = requests.post(jetspec.url + "/generate", json=body, timeout=60)
    assert answer.status_code == 400
    assert "structured output" in answer.text
    assert settled(jetspec)


def test_an_empty_prompt_gets_a_clear_error(jetspec):
    answer = requests.post(jetspec.url + "/generate", json={"input_ids": []}, timeout=60)
    assert answer.status_code == 400
    assert settled(jetspec)


def test_server_info_tells_accept_length_and_stages(jetspec):
    greedy(jetspec, [9, 10, 11], 8)
    stats = jetspec.info()["internal_states"][0]["jetspec"]
    assert stats["tau"] >= 1
    assert stats["rounds"] > 0
    assert set(stats["stage_seconds"]) == {"draft", "build", "verify", "accept", "commit"}
