import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetspec_sglang.loadtest.bootstrap import distribution, draws, interval, quantile, ratio

values = st.lists(st.integers(0, 1000).map(float), min_size=1, max_size=30)


@given(values, st.floats(0.001, 1))
def test_quantile_is_the_smallest_that_enough_do_not_exceed(values, q):
    found = quantile(sorted(values), q)
    share = sum(value <= found for value in values) / len(values)
    below = sum(value < found for value in values) / len(values)
    assert share >= q - 1e-9
    assert below < q


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50).map(float), st.integers(1, 5)), min_size=1, max_size=20))
def test_weight_is_repetition(pairs):
    """A value of weight n is n equal values, of the same request."""
    counts = draws(len(pairs), seed=3, resamples=50)
    weighted = distribution([[(value, float(n))] for value, n in pairs], counts)
    repeated = distribution([[(value, 1.0)] * n for value, n in pairs], counts)
    for statistic in ("mean", "p50", "p90", "p99"):
        assert weighted[statistic]["value"] == pytest.approx(repeated[statistic]["value"])
        assert weighted[statistic]["ci"] == pytest.approx(repeated[statistic]["ci"])


@given(values)
def test_without_weights_it_is_the_plain_quantile(values):
    found = distribution([[(value, 1.0)] for value in values], draws(len(values), 0, 20))
    for name, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        assert found[name]["value"] == quantile(sorted(values), q)
        assert found[name]["ci"][0] <= found[name]["ci"][1]


def test_draws_are_of_whole_requests_and_seeded():
    counts = draws(7, seed=1, resamples=20)
    assert len(counts) == 20
    assert all(sum(count) == 7 for count in counts)
    assert counts == draws(7, seed=1, resamples=20) != draws(7, seed=2, resamples=20)


def test_intervals_cover_the_truth_as_often_as_they_say():
    """Means of 40 draws from an exponential law of mean 1."""
    source = random.Random(5)
    covered = 0
    for seed in range(200):
        sample = [[(source.expovariate(1), 1.0)] for _ in range(40)]
        low, high = distribution(sample, draws(40, seed, 200))["mean"]["ci"]
        covered += low <= 1 <= high
    assert 0.86 <= covered / 200 <= 0.98  # 95 % but for a skewed law and few values, ± 3 σ


def test_a_few_requests_with_many_gaps_are_few():
    """Gaps of one answer go together: resampling them one by one would claim ten times the precision."""
    sample = [[(float(unit), 1.0)] * 100 for unit in range(4)]
    low, high = distribution(sample, draws(4, 0, 500))["mean"]["ci"]
    assert high - low > 1.5


def test_ratio():
    counts = draws(3, 0, 100)
    found = ratio([1, 2, 3], [2, 2, 2], counts)
    assert found["value"] == 1
    assert found["ci"][0] <= 1 <= found["ci"][1]
    assert ratio([1, 1], [0, 0], draws(2, 0, 10)) is None


def test_no_values():
    assert distribution([[], []], draws(2, 0, 10)) is None
    assert interval(list(map(float, range(1, 101)))) == [3.0, 98.0]
