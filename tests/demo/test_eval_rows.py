"""From raw rows to numbers."""

import json
from dataclasses import replace

import pytest

from jetspec_sglang.compare import CompareError
from jetspec_sglang.eval_grid import PLAIN, grid
from jetspec_sglang.eval_report import tables
from jetspec_sglang.eval_rows import Measurement, ceilings, parse_rows, read_raw, stages, summarise
from jetspec_sglang.eval_run import grown
from jetspec_sglang.round_stats import STAGES

(TREE,) = grid("d", 8, [16], ["optimal"], ["accum_logp"])


def measured(
    configuration, domain: str, prompt: int, seconds: float, rounds: int = 0, accepted: int = 0, **more
) -> Measurement:
    """An answer of 11 tokens, 10 of them behind the first message."""
    return Measurement(
        **{
            "configuration": configuration,
            "block": "d",
            "domain": domain,
            "prompt": prompt,
            "turn": 0,
            "repeat": 0,
            "temperature": 0,
            "completion_tokens": 11,
            "decoded": 10,
            "prefill_seconds": 0.1,
            "decode_seconds": seconds,
            "rounds": rounds,
            "accepted_drafts": accepted,
            "drafts": configuration.drafts(8),
            "identical": True,
            "stage_seconds": {},
            "histogram": {},
            **more,
        }
    )


SAMPLE = [
    measured(PLAIN, "code", 0, 2),
    measured(TREE, "code", 0, 1, rounds=4, accepted=6),
    measured(PLAIN, "chat", 1, 2),
    measured(TREE, "chat", 1, 2, rounds=6, accepted=4),
]


def by_name(rows: list[dict]) -> dict:
    return {(row["expansion"], row["domain"]): row for row in rows}


def test_rows_by_domain_and_over_all():
    rows = by_name(summarise(SAMPLE))
    assert len(rows) == 6
    assert rows["none", "all"]["speedup"] == 1
    assert rows["none", "all"]["tau"] == 1
    assert rows["optimal", "code"]["speedup"] == 2
    assert rows["optimal", "all"]["tau"] == 2
    assert rows["optimal", "all"]["tok_s"] == pytest.approx(20 / 3)
    assert rows["optimal", "all"]["rounds"] == 10
    assert set(rows["optimal", "all"]) == {
        *("drafter", "expansion", "scoring", "alpha", "budget", "acceptance", "temperature"),
        *("domain", "tau", "tok_s", "speedup", "rounds"),
    }


def test_a_prompt_counts_with_its_median_repeat():
    repeats = [measured(TREE, "code", 0, s, repeat=r) for r, s in enumerate((1, 9, 2))]
    row = by_name(summarise([*SAMPLE[:1], *repeats, *SAMPLE[2:]]))["optimal", "code"]
    assert row["tok_s"] == pytest.approx(10 / 2)


def test_each_head_is_compared_with_the_plain_answers_beside_it():
    other = replace(TREE, drafter="e")
    slow = [measured(PLAIN, "code", 0, 8, block="e"), measured(other, "code", 0, 4, block="e")]
    rows = summarise([*SAMPLE, *slow])
    speedup = {(row["drafter"], row["domain"]): row["speedup"] for row in rows}
    assert speedup["e", "code"] == 2
    assert speedup["d", "code"] == 2
    assert speedup["none", "code"] == 1
    assert ("e", "chat") not in speedup


def test_an_answer_of_one_token_has_no_speed():
    rows = summarise([measured(PLAIN, "code", 0, 0, decoded=0), measured(TREE, "code", 0, 0, decoded=0)])
    assert {row["tok_s"] for row in rows} == {row["speedup"] for row in rows} == {None}
    json.dumps(rows, allow_nan=False)
    assert len(list(tables([measured(PLAIN, "code", 0, 0, decoded=0)]))) == 2


def test_stage_shares_and_ceiling_add_up_over_answers():
    seconds = dict.fromkeys(STAGES, 0.0) | {"verify": 3.0}
    more = {"stage_seconds": seconds, "histogram": {"0": 2, "7": 2}}
    twice = [
        measured(TREE, "code", 0, 1, **more),
        measured(TREE, "chat", 1, 1, **{**more, "stage_seconds": seconds | {"draft": 2.0}}),
    ]
    (row,) = stages([*SAMPLE[:1], *twice])
    assert (row["expansion"], row["verify"], row["draft"], row["commit"]) == ("optimal", 0.75, 0.25, 0)
    (row,) = ceilings([*SAMPLE[:1], *twice])
    assert (row["budget"], row["depth"], row["rounds"], row["share"], row["spike"]) == (16, 7, 8, 0.5, True)
    assert row["histogram"] == {"0": 4, "7": 4}


def test_a_round_that_drafts_nothing_has_no_ceiling():
    (root,) = grid("d", 8, [1], ["optimal"], ["accum_logp"])
    assert ceilings([SAMPLE[0], measured(root, "code", 0, 1, rounds=10, histogram={"0": 10})]) == []


def test_counters_between_two_readings():
    def reading(seconds: float, **histogram: int) -> dict:
        return {"stage_seconds": dict.fromkeys(STAGES, seconds), "accepted_drafts_histogram": histogram}

    seconds, rounds = grown(reading(1, a=1, b=2), reading(3, a=1, b=5, c=1))
    assert seconds == dict.fromkeys(STAGES, 2)
    assert rounds == {"b": 3, "c": 1}


def test_raw_rows_come_back(tmp_path):
    file = tmp_path / "raw.jsonl"
    lines = [{"run": {"kind": "trees"}}, *(m.row() for m in SAMPLE)]
    file.write_text("\n".join(map(json.dumps, lines)))
    run, rows = read_raw(file)
    assert run == {"kind": "trees"}
    assert parse_rows(file, rows, Measurement.of_row) == SAMPLE


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "no raw rows"),
        ("no json", "line 1 is no JSON"),
        ('{"run": {}}\n{"drafter": "no', "line 2 is no JSON .*; is the file cut short"),
        ('{"drafter": "none"}', "no raw rows"),
        ('{"run": {}}', "no answers"),
        ('{"run": {}}\n{"drafter": "none"}', "line 2 is no row"),
        ('{"run": {}}\n[]', "line 2 is no row"),
    ],
)
def test_a_file_of_something_else(tmp_path, text, sentence):
    file = tmp_path / "raw.jsonl"
    file.write_text(text)
    with pytest.raises(CompareError, match=sentence):
        parse_rows(file, read_raw(file)[1], Measurement.of_row)
    with pytest.raises(CompareError, match="can't be read"):
        read_raw(tmp_path / "none")


@pytest.mark.parametrize(
    ("name", "value"),
    [("decode_seconds", 0), ("completion_tokens", "many"), ("stage_seconds", 5), ("budget", "x")],
)
def test_a_row_with_another_value_is_named(tmp_path, name, value):
    file = tmp_path / "raw.jsonl"
    file.write_text("\n".join(map(json.dumps, [{"run": {}}, SAMPLE[0].row() | {name: value}])))
    with pytest.raises(CompareError, match=f"line 2 is no row of jetspec eval .{name}: "):
        parse_rows(file, read_raw(file)[1], Measurement.of_row)
