"""Numbers of a load comparison, without a server."""

import io

import pytest
from rich.console import Console

from jetspec_sglang.eval_load import Served, best_fixed, spread, summarise, table

SECONDS = {  # by method and concurrency, of two repeats
    ("plain", 1): (10.0, 20.0),
    ("budget 8", 1): (5.0, 8.0),
    ("adaptive", 1): (4.0, 10.0),
    ("bandit", 1): (4.0, 4.0),
    ("plain", 4): (4.0, 4.0),
    ("budget 8", 4): (8.0, 8.0),
    ("adaptive", 4): (5.0, 5.0),
    ("bandit", 4): (3.2, 3.2),
}


@pytest.fixture
def rows():
    served = [
        Served(method, concurrency, repeat, prompt, 50, 0.0, end, 10 * (method != "plain"), 15)
        for (method, concurrency), ends in SECONDS.items()
        for repeat, last in enumerate(ends)
        for prompt, end in enumerate((last / 2, last))
    ]
    return summarise(served)


def test_a_cell_is_its_tokens_over_the_time_to_its_last_answer(rows):
    found = {(row["method"], row["concurrency"]): row for row in rows}
    assert set(found["plain", 1]) == {"method", "concurrency", "tok_s", "speedup", "tau", "tokens", "seconds"}
    assert found["budget 8", 4] == {
        "method": "budget 8",
        "concurrency": 4,
        "tok_s": 100 / 8,
        "speedup": 0.5,
        "tau": 2.5,
        "tokens": 100,
        "seconds": 8,
    }
    assert found["plain", 1]["tau"] == 1
    assert found["plain", 1]["tok_s"] == pytest.approx(100 / 15)


def test_a_speedup_is_within_a_repeat(rows):
    (row,) = (row for row in rows if (row["method"], row["concurrency"]) == ("adaptive", 1))
    assert row["speedup"] == pytest.approx((10 / 4 + 20 / 10) / 2)


def test_the_best_fixed_choice_may_be_plain_decoding(rows):
    assert best_fixed(rows, 1)["method"] == "budget 8"
    assert best_fixed(rows, 4)["method"] == "plain"
    screen = Console(file=io.StringIO(), width=100)
    screen.print(table(rows))
    shown = screen.file.getvalue()
    assert "12.5 (0.50x)" in shown
    assert f"{(100 / 7) / (100 / 6.5):.2f}" in shown  # adaptive against budget 8 at 1
    assert "0.80" in shown  # and against plain at 4
    assert "1.25" in shown  # the bandit, which is no fixed choice
    screen = Console(file=io.StringIO(), width=100)
    screen.print(table([row for row in rows if row["method"] != "bandit"]))
    assert "bandit" not in screen.file.getvalue(), "a file from before it"


def test_answers_are_from_half_to_all_of_the_longest_and_the_same_in_every_cell():
    lengths = spread(64, 32)
    assert sorted(lengths) == list(range(33, 65))
    assert lengths == spread(64, 32) != sorted(lengths)
    assert spread(1, 3) == [1, 1, 1]
