"""The order of the cells and the config file."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetspec_sglang.loadtest.sweep_config import SweepConfig, read_config
from jetspec_sglang.loadtest.sweep_plan import Cell, Load, ordered
from jetspec_sglang.loadtest.sweep_servers import SweepError

EXAMPLE = Path(__file__).parents[2] / "examples/loadtest/smollm2-cpu.yaml"
GOOD = """
title: t
baseline: a
servers: {a: {args: [--x]}, b: {url: "http://127.0.0.1:1"}}
rates: [1, 2]
run: {max_tokens: 8}
"""


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 3), st.booleans())
def test_over_pairs_of_repetitions_a_linear_drift_cancels_out(servers, loads, pairs, alone):
    names, all_loads = [f"s{i}" for i in range(servers)], [Load("rate", i + 1) for i in range(loads)]
    cells = ordered(names, all_loads, 2 * pairs, one_at_a_time=alone)
    assert len(set(cells)) == len(cells) == servers * loads * 2 * pairs
    places: dict[tuple, list[int]] = {}
    for place, cell in enumerate(cells):
        places.setdefault((cell.server, cell.load), []).append(place)
    assert len({sum(found) for found in places.values()}) == 1


def test_each_load_begins_with_another_server():
    cells = ordered(["a", "b", "c"], [Load("rate", r) for r in (1, 2, 3)], 1)
    assert [cell.server for cell in cells[::3]] == ["a", "b", "c"]


def test_one_at_a_time_starts_each_server_once_a_repetition():
    cells = ordered(["a", "b"], [Load("rate", r) for r in (1, 2)], 2, one_at_a_time=True)
    assert "".join(cell.server for cell in cells) == "aabbbbaa"


def test_all_servers_of_a_repetition_share_the_seed(tmp_path):
    config = SweepConfig.model_validate(
        {
            "title": "t",
            "baseline": "a",
            "servers": {"a": {"args": []}, "b": {"args": []}},
            "rates": [1, 2],
            "seed": 5,
        }
    )
    seeds = {
        (rep, s): config.run_of(Cell(s, Load("rate", 1), rep), "http://h").seed
        for rep in (1, 2)
        for s in "ab"
    }
    assert seeds == {(1, "a"): 5, (1, "b"): 5, (2, "a"): 6, (2, "b"): 6}


def test_yaml_and_toml_say_the_same(tmp_path):
    one, other = tmp_path / "a.yaml", tmp_path / "a.toml"
    one.write_text(GOOD)
    other.write_text(
        'title = "t"\nbaseline = "a"\nrates = [1, 2]\n[servers]\na = {args = ["--x"]}\n'
        'b = {url = "http://127.0.0.1:1"}\n[run]\nmax_tokens = 8\n'
    )
    assert read_config(one) == read_config(other)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("rates", "rate"), "rate: Extra inputs"),
        (("max_tokens", "most_tokens"), "most_tokens"),
        (("rates: [1, 2]", "rates: []"), "give rates or concurrencies"),
        (("rates: [1, 2]", "rates: [1, 1]"), "twice"),
        (("baseline: a", "baseline: c"), "name one of a, b"),
        (("max_tokens: 8", "seed: 8"), "which the sweep gives itself"),
        (("{args: [--x]}", "{}"), "give either args"),
        (("{args: [--x]}", "{args: [], url: u}"), "give either args"),
        (("servers: {a", "servers: {../a"), "servers"),
        (("title: t", "title: ["), "is no YAML"),
    ],
)
def test_mistakes_are_named(tmp_path, change, problem):
    file = tmp_path / "a.yaml"
    file.write_text(GOOD.replace(*change))
    with pytest.raises(SweepError, match=problem):
        read_config(file)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(SweepError, match="can't be read"):
        read_config(tmp_path / "none.yaml")


def test_the_example_is_a_good_one():
    config = read_config(EXAMPLE)
    assert len(config.rates) >= 5
    assert config.seconds() < 35 * 60
