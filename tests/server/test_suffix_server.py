"""Drafting from text, alone and grafted onto a head's trees: the text is the target's, whoever wrote the drafts.

Tiny random models in fp32. They don't repeat themselves, so what is found is found in prompts and in earlier answers.
"""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from asking import greedy, settled
from oracle import Oracle

pytestmark = pytest.mark.server

CONTEXT, CACHE = 512, 300
COMMON = (
    *("--skip-tokenizer-init", "--dtype", "float32", "--random-seed", "1", "--enable-metrics"),
    *("--max-total-tokens", "2000", "--chunked-prefill-size", "64", "--context-length", str(CONTEXT)),
    *("--speculative-algorithm", "JETSPEC"),
)


def flags(models, kind: str) -> tuple[str, ...]:
    if kind.startswith("suffix"):
        return (*COMMON, "--model-path", models["target"], "--jetspec-drafter", "suffix")
    head = ("--speculative-draft-model-path", models["head"])
    return (*COMMON, "--model-path", models["target"], *head, "--jetspec-graft", "suffix")


@pytest.fixture(
    scope="module",
    params=[
        *("suffix", "suffix sync bandit", "graft sync", "graft adaptive"),
        *(pytest.param(kind, marks=pytest.mark.matrix) for kind in ("suffix adaptive", "graft")),
    ],
)
def server(request, serve, models):
    more: tuple[str, ...] = ("--jetspec-suffix-cache", str(CACHE))
    if "sync" in request.param:
        more += ("--disable-overlap-schedule",)
    for policy in ("adaptive", "bandit"):
        if policy in request.param:
            more += ("--jetspec-budget", policy, "--max-running-requests", "8")
    server = serve(*flags(models, request.param), *more)
    yield server
    assert settled(server), server.tail()
    server.stop()


@pytest.fixture(scope="module")
def oracle(models):
    return Oracle(models["target"], models["head"])


def told(server) -> dict:
    return server.info()["internal_states"][0]["jetspec"]


def prompts(seed: int) -> list[list[int]]:
    """One token, short, several chunks, loops, and texts that share a prefix."""
    rng = random.Random(seed)
    rows = [[rng.randrange(5, 500) for _ in range(length)] for length in (1, 2, 9, 64, 65, 150)]
    return [*rows, rows[2] * 8, rows[5][:100] + rows[2], rows[5], rows[3] + rows[1]]


def test_many_requests_at_once_are_identical(server, oracle):
    """More than fit into the pool, with trees of different kinds in a batch, from texts of all the others."""
    kinds = ({}, {"budget": 7}, {"depth": 3}, {"budget": 1}, {"graft": "none"})
    cases = [(ids, 4 + 5 * i, kinds[i % 5]) for i, ids in enumerate(prompts(2) + prompts(3) + prompts(2))]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda case: greedy(server, case[0], case[1], **case[2])["output_ids"], cases))
    assert got == [oracle.plain(ids, new_tokens) for ids, new_tokens, _ in cases]


def test_a_finished_answer_is_drafted_from_and_the_text_stays_the_targets(server, oracle):
    """Also a text that goes on otherwise than the one that is remembered."""
    if "--jetspec-budget" in server.args:
        pytest.skip("how much is verified depends on what it costs here")
    ids = prompts(5)[3]
    first, second = (greedy(server, ids, 60) for _ in range(2))
    assert first["output_ids"] == second["output_ids"] == oracle.plain(ids, 60)
    assert second["meta_info"]["spec_verify_ct"] <= 8 < first["meta_info"]["spec_verify_ct"]
    accepted = told(server)["accepted_drafts_histogram"]
    assert max(map(int, accepted)) == 15, "a chain of the whole budget, deeper than the head drafts"
    other = [*prompts(6)[2], *ids[-8:]]
    assert greedy(server, other, 30)["output_ids"] == oracle.plain(other, 30)


def test_what_is_shown_of_a_requests_drafts_comes_from_its_own_text(server):
    """`trace` shows drafts that were not accepted: another's answer must not be among them."""
    if "--jetspec-graft" in server.args:
        pytest.skip("a head drafts from the vocabulary")
    rng = random.Random(7)
    ids = [rng.randrange(5, 500) for _ in range(30)]
    for seed in range(3):  # answers that begin after the same tokens
        greedy(server, [*prompts(seed)[2], *ids], 20)
    answer = greedy(server, ids, 20, trace=True)
    rounds = [row for row in told(server)["trace"] if row["rid"] == answer["meta_info"]["id"]]
    own = {*ids, *answer["output_ids"]}
    assert rounds
    assert all(token in own for row in rounds for token in row["tokens"])


def test_memory_is_bounded_and_told(server):
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda ids: greedy(server, ids, 60), prompts(8)))
    assert settled(server)
    held = told(server)["suffix"]
    assert 200 < held["cache_tokens"] <= held["cache_capacity"] == CACHE
    assert held["running_texts"] <= 8
    assert held["bytes"] < 300_000
    assert 0 < held["confirmed"] <= held["judged"] <= held["drafts"]
    text = requests.get(server.url + "/metrics", timeout=60).text
    gauges = {
        line.partition("{")[0].partition(" ")[0]: float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith("jetspec:suffix")
    }
    assert gauges["jetspec:suffix_cache_tokens"] == told(server)["suffix"]["cache_tokens"]
    assert gauges["jetspec:suffix_bytes"] > 8000


def test_flushing_sglangs_cache_empties_ours(server):
    greedy(server, prompts(10)[2], 20)
    assert requests.post(server.url + "/flush_cache", timeout=60).status_code == 200
    assert told(server)["suffix"]["cache_tokens"] == 0


def test_the_contexts_edge(server, oracle):
    rng = random.Random(9)
    ids = [rng.randrange(5, 500) for _ in range(40)] * 12
    for room in (CONTEXT - 2 - len(ids), CONTEXT - 4 - len(ids)):  # SGLang keeps two back
        assert greedy(server, ids, room)["output_ids"] == oracle.plain(ids, room)


def test_rules_that_draw_drafts_are_refused(server):
    params = {"max_new_tokens": 4, "custom_params": {"jetspec": {"acceptance": "rejection"}}}
    reply = requests.post(
        server.url + "/generate", json={"input_ids": [5, 6], "sampling_params": params}, timeout=60
    )
    assert reply.status_code == 400
    assert "give one of match" in reply.text


@pytest.mark.parametrize("kind", ["suffix", "graft"])
def test_the_cache_can_be_switched_off(serve, models, oracle, kind):
    server = serve(*flags(models, kind), "--jetspec-suffix-cache", "0")
    ids = prompts(5)[3]
    first, second = (greedy(server, ids, 12) for _ in range(2))
    assert first["output_ids"] == second["output_ids"] == oracle.plain(ids, 12)
    assert second["meta_info"]["spec_verify_ct"] == first["meta_info"]["spec_verify_ct"]
    assert told(server)["suffix"]["cache_tokens"] == told(server)["suffix"]["cache_capacity"] == 0
    server.stop()
