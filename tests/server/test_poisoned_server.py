"""NaN in free slots never reaches an output: everything that is read was written by the request itself."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from oracle import Oracle
from test_tiny_server import COMMON, greedy, prompts, settled, used_slots

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def oracle(models) -> Oracle:
    return Oracle(models["target"], models["head"])


@pytest.fixture
def poisoned(serve, models):
    """Starts a JETSPEC server over poisoned slots."""

    def start(*more: str, **env: str):
        server = serve(
            *("--model-path", models["target"], *COMMON, "--max-total-tokens", "1400", *more),
            *("--speculative-algorithm", "JETSPEC", "--speculative-draft-model-path", models["head"]),
            program=(str(Path(__file__).parent / "poisoned_server.py"),),
            env=env,
        )
        assert server.log.read_text().count("poisoned a KV pool") == 2, "the target's and the drafter's"
        return server

    return start


def ask_all(server, cases: list[list[int]], new_tokens: int) -> list[dict]:
    with ThreadPoolExecutor(6) as pool:
        return list(pool.map(lambda ids: greedy(server, ids, new_tokens), cases))


def test_many_requests_over_poisoned_slots(poisoned, oracle):
    """NaN in the target's KV would show in the text, in the drafter's in the accepted drafts."""
    server = poisoned()
    cases = [ids for ids in prompts(11) if len(ids) < 140] * 2
    for ids, answer in zip(cases, ask_all(server, cases, 24), strict=True):
        tokens, rounds, _ = oracle.decode(ids, 24, budget=16, width=15)
        assert answer["output_ids"] == tokens
        assert answer["meta_info"]["spec_verify_ct"] == len(rounds)
    assert used_slots(server) == 0
    assert settled(server)


@pytest.mark.parametrize("schedule", [(), ("--disable-overlap-schedule",)], ids=["overlap", "sync"])
def test_retracted_requests_lose_nothing(poisoned, oracle, schedule):
    """SGLang takes running requests out every few steps, frees their slots and prefills them again later."""
    server = poisoned(*schedule, SGLANG_TEST_RETRACT="1", SGLANG_TEST_RETRACT_INTERVAL="7")
    cases = [ids for ids in prompts(12) if len(ids) < 140]
    answers = ask_all(server, cases, 40)
    assert sum(answer["meta_info"]["num_retractions"] for answer in answers) > 3
    for ids, answer in zip(cases, answers, strict=True):
        assert answer["output_ids"] == oracle.decode(ids, 40, budget=16, width=15)[0]
    assert used_slots(server) == 0
    assert settled(server)
