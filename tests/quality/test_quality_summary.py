"""From raw rows to numbers and tables, on rows made by hand."""

import json

import made_quality
import pytest

from jetspec_sglang.drafters.quality.rows import Measured
from jetspec_sglang.drafters.quality.summary import gaps, pairs, rank1_gaps
from jetspec_sglang.quality_tables import sheets


def test_gaps_of_each_head():
    near, far = gaps(made_quality.measured())
    assert (near.head, near.drafted, near.rounds) == ("near", 3, 4)
    assert near.median == pytest.approx(1.5)
    assert (near.extreme, near.faithful) == (0, 0.75)
    assert near.token_median == pytest.approx(0.5)
    # 80/15 is 5.33, 5/15 is 0.33 and a little: -1/3 is below, 1/3 is 5/15 itself.
    assert (near.token_extreme, near.token_faithful) == (0.25, pytest.approx(0.25, abs=0.25))
    assert (near.rank1_length, near.tree_length) == (1 + 6 / 4, 1 + 9 / 4)
    assert (far.median, far.extreme, far.faithful) == (pytest.approx(36), 0.25, 0.25)
    assert (far.token_median, far.token_extreme, far.token_faithful) == (pytest.approx(6), 0.5, 0)
    assert (far.rank1_length, far.tree_length) == (1 + 3 / 4, 2)


def test_two_heads_at_the_same_prefixes():
    [pair] = pairs(made_quality.measured())
    assert (pair.wider, pair.closer) == ("far", "near")
    assert pair.exceeds == 1
    assert pair.ratio == pytest.approx(12)
    assert pair.accepted == pytest.approx(3.25 / 2)


def test_no_ratio_to_a_median_that_is_not_positive():
    result = made_quality.measured()
    faithful = made_quality.branch(-3, 3, 0)
    rounds = [
        each.model_copy(
            update={
                "drafts": {
                    **each.drafts,
                    "near": each.drafts["near"].model_copy(update={"branches": [faithful]}),
                }
            }
        )
        for each in result.rounds
    ]
    [pair] = pairs(result.model_copy(update={"rounds": rounds}))
    assert (pair.wider, pair.ratio, pair.exceeds) == ("far", None, 1)


def test_tables_are_the_same_after_json():
    result = made_quality.measured()
    again = Measured.model_validate_json(json.dumps({"summary": {}, **result.model_dump()}))
    assert list(sheets(again)) == list(sheets(result))
    assert rank1_gaps(again, "far") == pytest.approx([3, 12, 60, 120])


def test_tables_say_what_was_measured_and_what_the_paper_has():
    gap, pair, near, far, cost = sheets(made_quality.measured())
    assert gap.rows[1][:6] == ["far", "6", "4", "36.00", "25%", "25%"]
    assert gap.rows[1][-2:] == ["1.75", "2.00"]
    assert gap.rows[2][4:6] == gap.rows[2][7:9] == ["0%", "42%"]
    assert "9.46" in gap.rows[2]
    assert pair.rows[0] == ["far", "near", "100%", "12.0x", "1.62x"]
    assert pair.rows[1][2:] == ["92%", "5x", "1.95x"]
    assert near.rows[0] == ["1", "first <b>⏎of all", "-1.50", "-0.50", "-1.00", "3 of 3"]
    assert far.rows[0][2:] == ["-3.00", "-6.00", "3.00", "2 of 6"]
    assert near.title == "near: likeliest blocks at prompt 0, round 1"
    assert cost.headings == ["head", "drafted N", "L = 128", "L = 1024"]
    assert cost.rows[0] == ["near", "2", *["5.00% (10.0 / 100.0 ms)"] * 2]
    assert cost.rows[3] == ["far", "16", *["0.25% (4.0 / 100.0 ms)"] * 2]
    assert len({len(row) for row in gap.rows}) == 1


def test_no_cost_no_table_of_it():
    assert [sheet.title.split()[0] for sheet in sheets(made_quality.measured(cost=False))][-1] == "far:"
