"""The last bin of an acceptance histogram, against laws whose last bin is known."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetspec_sglang.ceiling import ceiling


def geometric(going_on: float, depth: int, rounds: int) -> dict[int, int]:
    """Rounds by accepted drafts where each draft is accepted with the same probability."""
    bins = {d: round(rounds * going_on**d * (1 - going_on)) for d in range(depth)}
    return bins | {depth: round(rounds * going_on**depth)}


@pytest.mark.parametrize("depth", [2, 3, 7, 15])
@pytest.mark.parametrize(("going_on", "spike"), [(0.3, False), (0.45, False), (0.6, True), (0.9, True)])
def test_geometric_law_spikes_where_a_round_would_rather_go_on(going_on, depth, spike):
    found = ceiling(geometric(going_on, depth, 10**12), depth)
    assert found.spike is spike
    assert found.share == pytest.approx(going_on**depth, rel=0.01)
    assert found.expected == pytest.approx(going_on**depth * (1 - going_on), rel=0.01)


def test_keys_of_json_and_missing_bins():
    assert ceiling({"0": 5, "3": 5}, 3) == ceiling({0: 5, 1: 0, 2: 0, 3: 5}, 3)


def test_a_few_rounds_are_chance():
    few = ceiling({0: 8, 1: 4, 2: 2, 3: 3}, 3)
    many = ceiling({d: 100 * n for d, n in {0: 8, 1: 4, 2: 2, 3: 3}.items()}, 3)
    assert (few.share, few.expected) == (many.share, many.expected) == (3 / 17, 1 / 17)
    assert not few.spike
    assert many.spike


def test_bins_that_show_no_decay_are_not_extrapolated_upwards():
    assert ceiling({0: 1, 1: 2, 2: 4, 3: 8, 4: 9}, 4).expected == 8 / 24
    assert ceiling({3: 100}, 3).spike, "every round"
    assert ceiling({0: 1, 1: 99}, 1).spike
    assert not ceiling({0: 40, 1: 60}, 1).spike


def test_no_rounds():
    found = ceiling({}, 7)
    assert (found.share, found.expected, found.spike) == (None, None, False)
    assert found.sentence() == "No rounds were counted."


def test_sentences():
    assert ceiling({0: 1, 1: 99}, 1).sentence() == (
        "99.0% of 100 rounds accepted the whole block of 1 draft; "
        "the decay of shorter ones predicts 1.0%: a spike, so a longer block would accept more."
    )
    assert "block of 7 drafts" in ceiling(geometric(0.2, 7, 1000), 7).sentence()
    assert ceiling(geometric(0.2, 7, 1000), 7).sentence().endswith("no spike.")


@pytest.mark.parametrize(("histogram", "depth"), [({0: 1}, 0), ({4: 1}, 3), ({-1: 1}, 3)])
def test_wrong_histograms(histogram, depth):
    with pytest.raises(ValueError, match="block has"):
        ceiling(histogram, depth)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=2, max_size=12))
def test_spike_only_grows_with_the_last_bin(bins):
    depth = len(bins) - 1
    spikes = [ceiling({**dict(enumerate(bins)), depth: last}, depth).spike for last in (0, 10, 100, 10_000)]
    assert spikes == sorted(spikes)
    assert not spikes[0]
