"""NaN in free slots never reaches an output: everything that is read was written by the request itself."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from oracle import Oracle
from test_tiny_server import COMMON, greedy, prompts, settled

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def poisoned(serve, models):
    return serve(
        *("--model-path", models["target"], *COMMON, "--max-total-tokens", "1400"),
        *("--speculative-algorithm", "JETSPEC", "--speculative-draft-model-path", models["head"]),
        program=(str(Path(__file__).parent / "poisoned_server.py"),),
    )


def test_many_requests_over_poisoned_slots(poisoned, models):
    """Text shows NaN in the target's KV, accepted drafts show it in the drafter's."""
    oracle = Oracle(models["target"], models["head"])
    cases = [ids for ids in prompts(11) if len(ids) < 140]
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda ids: greedy(poisoned, ids, 24), cases * 2))
    for ids, answer in zip(cases * 2, answers, strict=True):
        tokens, rounds = oracle.decode(ids, 24, budget=16, width=15)
        assert answer["output_ids"] == tokens
        assert answer["meta_info"]["spec_verify_ct"] == len(rounds)
    assert settled(poisoned)
