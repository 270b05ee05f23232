"""Every kind of drafter behind a JETSPEC server: the text is the target's, the rounds are the method's.

Tiny random models in fp32. Which drafts a round offers is compared with plain torch node by node, so a drafter
that reads a wrong feature, token, position or slot is found even where nothing of it is accepted.
"""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
import tiny
from asking import greedy, settled
from oracle import Oracle

from jetspec_sglang.drafters.checkpoint_corrector import PUBLISHED_CANDIDATES
from jetspec_sglang.drafters.head_config import CorrectorConfig

pytestmark = pytest.mark.server

BUDGET, WIDTH, DEPTH = 16, 6, 4
COMMON = ("--skip-tokenizer-init", "--dtype", "float32", "--chunked-prefill-size", "64", "--random-seed", "1")
GRU = CorrectorConfig(kind="gru", rank=8, state_size=12, candidates=20)
MLP = CorrectorConfig(kind="mlp", rank=8, candidates=4, skip=0)  # fewer than the width
DOMINO = CorrectorConfig(kind="domino", rank=8, state_size=12, candidates=PUBLISHED_CANDIDATES)
TREEFLASH = CorrectorConfig(kind="treeflash", rank=64, candidates=PUBLISHED_CANDIDATES, skip=0)
HEADS = {
    "causal_parallel": lambda folder: tiny.tiny_head(folder, seed=3, target_layers=4),
    "diffusion": lambda folder: tiny.tiny_head(folder, seed=3, causal=False, target_layers=4),
    "causal_parallel, gru": lambda folder: tiny.tiny_head(folder, seed=3, target_layers=4, corrector=GRU),
    "diffusion, mlp": lambda folder: tiny.tiny_head(
        folder, seed=3, causal=False, target_layers=4, corrector=MLP
    ),
    "domino": lambda folder: tiny.tiny_head(
        folder, seed=3, causal=False, target_layers=4, corrector=DOMINO, shifted=True
    ),
    "treeflash": lambda folder: tiny.tiny_head(
        folder, seed=3, causal=False, target_layers=4, corrector=TREEFLASH
    ),
    "autoregressive": lambda folder: tiny.tiny_eagle_head(folder, seed=3),
    "autoregressive, target's lm_head": lambda folder: tiny.tiny_eagle_head(folder, seed=3, draft_vocab=None),
    "spec_block": lambda folder: tiny.tiny_spec_block_head(folder, seed=3),
    "spec_block, one forward, sync": lambda folder: tiny.tiny_spec_block_head(folder, seed=3, positions=5),
}

# What these do, others do too, each with something else beside it.
ALONE = ("diffusion", "treeflash", "autoregressive, target's lm_head")


@pytest.fixture(
    scope="module",
    params=[pytest.param(head, marks=pytest.mark.matrix if head in ALONE else ()) for head in HEADS],
)
def drafted(request, serve, tmp_path_factory):
    """(server, oracle). The drafter's name is not given: the head says it."""
    target = str(tiny.tiny_target(tmp_path_factory.mktemp("target"), layers=4))
    head = str(HEADS[request.param](tmp_path_factory.mktemp("head")))
    server = serve(
        *("--model-path", target, *COMMON, "--max-total-tokens", "2000"),
        *("--speculative-algorithm", "JETSPEC", "--speculative-draft-model-path", head),
        *("--speculative-num-draft-tokens", str(BUDGET), "--speculative-eagle-topk", str(WIDTH)),
        *("--speculative-num-steps", str(DEPTH)),
        *("--context-length", "512"),  # more than the autoregressive head was trained on
        *(("--disable-overlap-schedule",) if "sync" in request.param else ()),
    )
    yield server, Oracle(target, head)
    assert settled(server), server.tail()
    server.stop()


def prompts(seed: int) -> list[list[int]]:
    """One token, short, several chunks, and texts that leave a shared prefix within a chunk and at its end."""
    rng = random.Random(seed)
    rows = [[rng.randrange(5, 500) for _ in range(length)] for length in (1, 2, 9, 64, 65, 150)]
    return [*rows, rows[5][:100] + rows[2], rows[5][:64] + rows[2], rows[5], rows[3] + rows[1]]


def rounds_of(server, answer: dict) -> list[dict]:
    state = requests.get(server.url + "/server_info", timeout=60).json()["internal_states"][0]
    return [row for row in state["jetspec"]["trace"] if row["rid"] == answer["meta_info"]["id"]]


def assert_same_rounds(server, oracle, ids: list[int], new_tokens: int, budget: int, depth: int) -> None:
    answer = greedy(server, ids, new_tokens, trace=True, budget=budget, depth=depth)
    tokens, rounds, trees = oracle.decode(ids, new_tokens, budget, WIDTH, depth)
    assert answer["output_ids"] == tokens
    traced = rounds_of(server, answer)
    assert len(traced) >= len(rounds)
    for got, want in zip(traced, trees, strict=False):
        size = int(want.size[0])
        assert got["tokens"] == want.tokens[0, :size].tolist()
        assert got["parent"] == want.parent[0, :size].tolist()
        assert got["logprob"] == pytest.approx(want.logprob[0, :size].tolist(), abs=2e-4)


def test_drafts_are_those_of_the_method(drafted):
    """Also where the radix cache holds part of a prompt, and its drafts were made for another text."""
    server, oracle = drafted
    for ids in prompts(0):
        assert_same_rounds(server, oracle, ids, 12, BUDGET, DEPTH)


@pytest.mark.parametrize(("budget", "depth"), [(2, 4), (9, 2), (5, 1)])
def test_smaller_trees_are_those_of_the_method(drafted, budget, depth):
    server, oracle = drafted
    assert_same_rounds(server, oracle, prompts(1)[2], 8, budget, depth)


def test_many_requests_at_once_are_identical(drafted):
    """More than fit into the pool, with trees of different kinds in a batch."""
    server, oracle = drafted
    kinds = ({}, {"budget": 7}, {"width": 2, "depth": 3}, {"scoring": "hybrid:alpha=0.5"})
    cases = [(ids, 4 + 5 * i, kinds[i % 4]) for i, ids in enumerate(prompts(2) + prompts(3))]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda case: greedy(server, case[0], case[1], **case[2])["output_ids"], cases))
    assert got == [oracle.plain(ids, new_tokens) for ids, new_tokens, _ in cases]


def test_drafts_after_many_requests_are_those_of_the_method(drafted):
    """Whatever was evicted, freed and overwritten before."""
    server, oracle = drafted
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda ids: greedy(server, ids, 30), prompts(4) + prompts(5)))
    for ids in (prompts(4)[5], prompts(5)[6]):
        assert_same_rounds(server, oracle, ids, 12, BUDGET, DEPTH)


def test_the_contexts_edge(drafted):
    server, oracle = drafted
    rng = random.Random(6)
    ids = [rng.randrange(5, 500) for _ in range(480)]
    for room in (512 - 2 - len(ids), 512 - 4 - len(ids)):  # SGLang keeps two back
        assert greedy(server, ids, room)["output_ids"] == oracle.plain(ids, room)


def test_what_a_drafter_does_not_do_is_refused_per_request(drafted):
    server, oracle = drafted
    params = {
        "temperature": 1,
        "max_new_tokens": 4,
        "custom_params": {"jetspec": {"acceptance": "traversal"}},
    }
    answer = requests.post(
        server.url + "/generate", json={"input_ids": [5, 6], "sampling_params": params}, timeout=60
    )
    if oracle.config.conditioning == "path":
        assert answer.status_code == 400
        assert "give one of match" in answer.text
    else:
        assert answer.status_code == 200
