"""Token identity in fp32 with the trained head, where long paths really are accepted.

`make test-identity` runs the whole matrix; the ordinary tests run a seeded part of it.
"""

from concurrent.futures import ThreadPoolExecutor

import builtin_model as builtin
import pytest
from oracle import Oracle

from jetspec_sglang.builtin.head import builtin_head
from jetspec_sglang.builtin.target import builtin_target

PART = 16
MATRIX = 200


def texts(server, cases, at_once: int) -> list[list[int]]:
    with ThreadPoolExecutor(at_once) as pool:
        return [answer["output_ids"] for answer in pool.map(lambda case: builtin.ask(server, case), cases)]


@pytest.fixture(scope="module")
def plain(serve):
    return serve(*builtin.COMMON)


@pytest.mark.server
@pytest.mark.parametrize(("budget", "overlap"), [(16, True), (64, False)])
def test_part_of_the_matrix(serve, plain, budget, overlap):
    cases = builtin.prompts(PART, seed=budget)
    jetspec = serve(*builtin.COMMON, *builtin.jetspec_flags(budget, overlap))
    assert texts(jetspec, cases, at_once=6) == texts(plain, cases, at_once=6)
    stats = jetspec.info()["internal_states"][0]["jetspec"]
    assert stats["tau"] > 1.3, "the trained head's drafts are accepted"
    deepest = max(int(drafts) for drafts in stats["accepted_drafts_histogram"])
    assert deepest >= 5, "long paths are accepted somewhere"

    if budget == 16:
        oracle = Oracle(str(builtin_target()), str(builtin_head()))
        answer = builtin.ask(jetspec, (cases[0][0], 48))
        tokens, rounds, _ = oracle.decode(cases[0][0], 48, budget=16, width=15)
        assert answer["output_ids"] == tokens
        assert answer["meta_info"]["spec_verify_ct"] == len(rounds)
    jetspec.stop()


@pytest.mark.server
@pytest.mark.parametrize(
    "overlap", [True, pytest.param(False, marks=pytest.mark.matrix)], ids=["overlap", "sync"]
)
def test_blocks_that_go_on_from_accepted_ones(serve, plain, tmp_path, overlap):
    cases = builtin.prompts(16, seed=3)
    head = builtin.spec_block_head(tmp_path, positions=3)
    jetspec = serve(*builtin.COMMON, *builtin.jetspec_flags(16, overlap, head))
    assert texts(jetspec, cases, at_once=6) == texts(plain, cases, at_once=6)
    stats = jetspec.info()["internal_states"][0]["jetspec"]
    deepest = max(int(drafts) for drafts in stats["accepted_drafts_histogram"])
    assert deepest > 3, "drafts of a second block are accepted somewhere"
    jetspec.stop()


@pytest.fixture(scope="module")
def matrix_texts(plain):
    cases = builtin.prompts(MATRIX)
    return cases, texts(plain, cases, at_once=8)


@pytest.mark.matrix
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "sync"])
@pytest.mark.parametrize("budget", [1, 2, 8, 16, 64, 256])
def test_matrix(serve, matrix_texts, budget, overlap):
    """Batch sizes follow from how many requests are sent at once: 1 to 8, in turn."""
    cases, want = matrix_texts
    jetspec = serve(*builtin.COMMON, *builtin.jetspec_flags(budget, overlap))
    share = len(cases) // 8
    for at_once in range(1, 9):
        part = slice((at_once - 1) * share, at_once * share)
        assert texts(jetspec, cases[part], at_once) == want[part]
    jetspec.stop()
