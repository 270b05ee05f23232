"""Requests that fit beside the verify logits."""

import pytest

from jetspec_sglang.config import ConfigError
from jetspec_sglang.memory import (
    GIB,
    check_max_running_requests,
    default_max_running_requests,
    verify_logits_bytes,
)

QWEN_VOCAB = 151936


@pytest.mark.parametrize("budget", [1, 16, 64, 256, 1024])
def test_default_keeps_the_logits_within_two_gib(budget):
    requests = default_max_running_requests(budget, QWEN_VOCAB)
    assert 1 <= requests <= 48
    assert verify_logits_bytes(requests, budget, QWEN_VOCAB) <= 2 * GIB
    assert requests == 48 or verify_logits_bytes(requests + 1, budget, QWEN_VOCAB) > 2 * GIB


def test_default_is_at_least_one_request():
    assert default_max_running_requests(1024, 10_000_000) == 1


def test_too_many_requests_shows_the_arithmetic_and_both_ways_out():
    with pytest.raises(ConfigError) as error:
        check_max_running_requests(400, 256, QWEN_VOCAB)
    said = str(error.value)
    assert "400 requests x 256 nodes x 151936 tokens x 4 bytes = 58.0 GiB" in said
    assert "--max-running-requests to at most 110" in said
    assert "--speculative-num-draft-tokens to at most 70" in said


def test_the_advice_fits():
    check_max_running_requests(110, 256, QWEN_VOCAB)
    check_max_running_requests(400, 70, QWEN_VOCAB)
    check_max_running_requests(None, 1024, QWEN_VOCAB)
