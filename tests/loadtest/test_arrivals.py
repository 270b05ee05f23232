from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from jetspec_sglang.loadtest.arrivals import ScheduleError, ramp, schedule, share
from jetspec_sglang.loadtest.config import LoadConfig

rates = st.floats(0.5, 50)
seeds = st.integers(0, 1000)
several = settings(max_examples=50, deadline=None)


def config(**settings) -> LoadConfig:
    return LoadConfig(**{"warmup_s": 2, "duration_s": 100, **settings})


@pytest.fixture
def trace(tmp_path):
    file = tmp_path / "times.txt"
    file.write_text("12.5\n10\n\n11\n500\n")
    return file


@several
@given(rates, seeds, st.sampled_from(["poisson", "constant", "bursts", "ramp"]))
def test_sorted_in_the_run_and_seeded(rate, seed, kind):
    settings = config(arrivals=kind, rate=rate, seed=seed, rate_to=rate / 2 if kind == "ramp" else None)
    times = schedule(settings)
    assert times == sorted(times) == schedule(settings)
    assert times[0] >= 0
    assert times[-1] < settings.end_s


@several
@given(rates, seeds)
def test_poisson_has_its_rate_and_exponential_gaps(rate, seed):
    times = schedule(config(rate=rate, seed=seed, duration_s=1000 / rate))
    count = rate * 2 + 1000
    assert abs(len(times) - count) < 5 * count**0.5
    gaps = [after - before for before, after in pairwise(times)]
    shorter = sum(gap < 0.6931 / rate for gap in gaps) / len(gaps)
    assert shorter == pytest.approx(0.5, abs=0.08)  # the median of an exponential gap; 5 σ


@several
@given(seeds)
def test_another_seed_is_another_schedule(seed):
    assert schedule(config(seed=seed)) != schedule(config(seed=seed + 1))


@given(rates)
def test_constant_gaps_are_equal(rate):
    times = schedule(config(arrivals="constant", rate=rate))
    assert len(times) == pytest.approx(rate * 102, abs=1)
    assert all(time == n / rate for n, time in enumerate(times))


@given(rates, st.integers(1, 20))
def test_bursts_come_together_at_the_mean_rate(rate, size):
    times = schedule(config(arrivals="bursts", rate=rate, burst=size))
    assert all(len(set(times[n : n + size])) == 1 for n in range(0, len(times), size))
    assert len(set(times)) == len(times) / size
    assert len(times) == pytest.approx(rate * 102, abs=size)


@several
@given(st.floats(1, 20), st.floats(1, 20), seeds)
def test_ramp_goes_from_one_rate_to_the_other(low, high, seed):
    """In warm-up the first rate; after it the integral of the changing rate, up to the half and to the end."""
    times = ramp(low, high, 50, 450, seed)
    for end, expected in (
        (50, 50 * low),
        (250, 50 * low + 200 * (3 * low + high) / 4),
        (450, 50 * low + 400 * (low + high) / 2),
    ):
        assert abs(sum(time < end for time in times) - expected) < 5 * expected**0.5


def test_ramp_between_equal_rates_is_poisson():
    assert ramp(3, 3, 2, 102, 7) == pytest.approx(schedule(config(rate=3, seed=7)))


def test_trace_is_replayed_from_its_first_time(trace):
    assert schedule(config(arrivals="trace", trace=trace)) == [0, 1, 2.5]  # 490 is after the end


@pytest.mark.parametrize("text", ["", "one\n", "1\nnan\n"])
def test_other_files_are_no_trace(tmp_path, text):
    (tmp_path / "times.txt").write_text(text)
    with pytest.raises(ScheduleError, match=r"is no trace.*write one start time in seconds a line"):
        schedule(config(arrivals="trace", trace=tmp_path / "times.txt"))


def test_an_empty_window_is_refused():
    with pytest.raises(ScheduleError, match=r"No request falls into the measured window \(2 to 3 s\)"):
        schedule(config(arrivals="constant", rate=0.2, duration_s=1))


@given(st.lists(st.floats(0, 100), max_size=40), st.integers(1, 7))
def test_workers_share_every_arrival_once(times, workers):
    parts = [share(times, worker, workers) for worker in range(workers)]
    assert sorted(pair for part in parts for pair in part) == list(enumerate(times))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"arrivals": "ramp"}, "rate_to goes with arrivals ramp"),
        ({"rate_to": 3}, "rate_to goes with arrivals ramp"),
        ({"arrivals": "trace"}, "trace, a file of start times, goes with arrivals trace"),
        ({"api": "chat", "template": "chatml"}, "template is not for api chat"),
        ({"url": "localhost:30000"}, "give one like http://127.0.0.1:30000"),
        ({"rate": 0}, "greater than 0"),
        ({"rate": float("inf")}, "finite"),
        ({"duration_s": float("inf")}, "finite"),
        ({"rate": 1e8, "duration_s": 100}, "lower rate or duration_s"),
        ({"rates": 1}, "not permitted"),
    ],
)
def test_settings_that_do_not_go_together(settings, message):
    with pytest.raises(ValidationError, match=message):
        LoadConfig(**settings)


def test_settings_survive_locusts_command_line(trace):
    given = config(
        arrivals="trace", trace=trace, flush=False, ignore_eos=True, temperature=0.7, slo_ttft_s=0.5
    )
    words = given.arguments()
    options = {
        "url" if flag == "--host" else flag.removeprefix("--").replace("-", "_"): value
        for flag, value in zip(words[::2], words[1::2], strict=True)
    }
    assert LoadConfig.of_options(options) == given
