"""What the report says, apart from how it looks: numbers, words, files."""

import json

import made_study
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetspec_sglang.loadtest.records import read_run, write_run
from jetspec_sglang.loadtest.report import write_report
from jetspec_sglang.loadtest.report_caveats import caveats
from jetspec_sglang.loadtest.report_figures import sections
from jetspec_sglang.loadtest.report_load_figures import crossover
from jetspec_sglang.loadtest.report_round_figures import widths
from jetspec_sglang.loadtest.report_shapes import log_ticks
from jetspec_sglang.loadtest.report_summary import StudyError, cell_folder, significant, summarise_study
from jetspec_sglang.loadtest.report_tables import point_table

PLAN = made_study.config(("plain", "tree16", "adaptive"), (0.5, 2), (1, 4), repetitions=3, seconds=8)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return made_study.write_study(tmp_path_factory.mktemp("study"), PLAN)


@pytest.fixture(scope="module")
def summary(study):
    return summarise_study(study)


def point(summary: dict, server: str, kind: str, load: float) -> dict:
    (found,) = [p for p in summary["points"] if (p["server"], p["kind"], p["load"]) == (server, kind, load)]
    return found


def test_point_is_the_median_of_its_repetitions(summary):
    values = sorted(
        summary["cells"][f"plain/rate-2/{n}"]["numbers"]["tpot_s"]["p50"]["value"] for n in (1, 2, 3)
    )
    found = point(summary, "plain", "rate", 2)["numbers"]["tpot_s.p50.value"]
    assert found == {"median": values[1], "low": values[0], "high": values[2]}


def test_speedup_pairs_repetitions(summary):
    def tok_s(server: str, n: int) -> float:
        return summary["cells"][f"{server}/concurrency-4/{n}"]["numbers"]["tok_s"]

    ratios = sorted(tok_s("tree16", n) / tok_s("plain", n) for n in (1, 2, 3))
    (row,) = [
        r for r in summary["speedups"] if (r["server"], r["kind"], r["load"]) == ("tree16", "concurrency", 4)
    ]
    assert row["speedup"] == pytest.approx(
        {"median": ratios[1], "low": ratios[0], "high": ratios[2]}, rel=1e-5
    )


def test_plain_server_has_no_rounds_and_jetspec_has(summary):
    assert summary["rounds"]["plain"] is None
    rounds = summary["rounds"]["adaptive"]
    assert rounds["ceiling"] == made_study.DEPTH
    assert set(rounds["widths"]) == {"rate-0.5", "rate-2", "concurrency-1", "concurrency-4"}
    assert rounds["stage_ms"]["verify"] == max(rounds["stage_ms"].values())
    counted = [c["numbers"] for name, c in summary["cells"].items() if name.startswith("adaptive/")]
    assert sum(rounds["histogram"]) == sum(sum(numbers["histogram"]) for numbers in counted)


def test_what_a_bandit_chose_is_counted_alike(tmp_path):
    folder = made_study.write_study(tmp_path, made_study.config(("plain", "adaptive"), (2,), (), 1, 8))
    before = summarise_study(folder)["rounds"]["adaptive"]["widths"]
    place = cell_folder(folder, "adaptive/rate-2/1")
    run = read_run(place)
    told = run.server_after["internal_states"][0]["jetspec"]
    told["bandit"] = told.pop("adaptive")
    write_run(place, run)
    assert before
    assert summarise_study(folder)["rounds"]["adaptive"]["widths"] == before


def test_states_before_a_cell_are_taken_off(tmp_path):
    folder = made_study.write_study(tmp_path, made_study.config(("plain", "adaptive"), (2,), (), 1, 8))
    before = summarise_study(folder)["rounds"]["adaptive"]
    place = cell_folder(folder, "adaptive/rate-2/1")
    run = read_run(place)
    # As much again had happened on the server before this cell.
    run.server_before = json.loads(json.dumps(run.server_after))
    run.server_after["internal_states"][0] = doubled(run.server_after["internal_states"][0])
    write_run(place, run)
    assert summarise_study(folder)["rounds"]["adaptive"] == before | {"ceiling": 2 * made_study.DEPTH}


def doubled(value: object) -> object:
    """All numbers within twice as large."""
    if isinstance(value, dict):
        return {key: doubled(inner) for key, inner in value.items()}
    return 2 * value


def test_invalid_cell_is_named_and_left_out(tmp_path):
    folder = made_study.write_study(tmp_path, made_study.config(("plain", "tree16"), (2,), (), 2, 8))
    place = cell_folder(folder, "plain/rate-2/1")
    run = read_run(place)
    run.valid, run.reasons = False, ["The generator was late."]
    write_run(place, run)
    summary = summarise_study(folder)
    found = point(summary, "plain", "rate", 2)
    assert (found["cells"], found["valid"]) == (2, 1)
    other = summary["cells"]["plain/rate-2/2"]["numbers"]
    assert found["numbers"]["tok_s"]["median"] == other["tok_s"]
    assert caveats(summary)[0].startswith("Cell plain/rate-2/1 is not valid")


def test_cell_that_only_says_it_is_valid_is_refused(tmp_path):
    folder = made_study.write_study(tmp_path, made_study.config(("plain",), (2,), (), 1, 8))
    place = cell_folder(folder, "plain/rate-2/1")
    run = read_run(place)
    run.loop["p99_s"] = 5.0
    write_run(place, run)
    with pytest.raises(StudyError, match="calls it valid, its records do not"):
        summarise_study(folder)


def test_point_without_a_valid_cell_is_a_gap(tmp_path):
    folder = made_study.write_study(tmp_path, made_study.config(("plain", "tree16"), (2,), (), 1, 8))
    place = cell_folder(folder, "tree16/rate-2/1")
    run = read_run(place)
    run.valid, run.reasons = False, ["It was stopped before its end."]
    write_run(place, run)
    write_report(folder)
    assert "1 of 2 points have no valid cell" in " ".join(caveats(summarise_study(folder)))


def test_unfinished_study_is_refused(tmp_path):
    folder = made_study.write_study(tmp_path, made_study.config(("plain",), (2,), (), 1, 8))
    (cell_folder(folder, "plain/rate-2/1") / "requests.jsonl").unlink()
    with pytest.raises(StudyError, match="plain/rate-2/1"):
        write_report(folder)


def test_folder_without_a_study_is_refused(tmp_path):
    with pytest.raises(StudyError, match="the folder of a sweep"):
        write_report(tmp_path)


def test_report_has_page_numbers_and_a_picture_of_each_figure(study, summary):
    page = write_report(study)
    assert page.stat().st_size > 4_000_000  # plotly.js is inside
    names = {path.name for path in page.parent.iterdir()}
    figures = [figure.id for section in sections(summary) for figure in section.figures]
    assert len(set(figures)) == len(figures) > 20
    assert names == {f"{figure}.png" for figure in figures} | {
        "report.html", "summary.json", "points.csv", "speedups.csv"
    }  # fmt: skip
    assert json.loads((page.parent / "summary.json").read_text()) == summary


def test_text_cannot_leave_its_place(tmp_path):
    plan = made_study.config(("plain",), (2,), (), 1, 8).model_copy(update={"title": "</script><b>&$title"})
    page = write_report(made_study.write_study(tmp_path, plan)).read_text()
    assert "<b>&" not in page
    assert "&lt;/script&gt;&lt;b&gt;&amp;$title" in page


def test_table_has_a_row_for_each_server_and_load(summary):
    rows = point_table(summary, "rate")
    assert [row[:2] for row in rows[1:]] == [
        [load, made_study.LABELS[server]] for load in ("0.5", "2") for server in PLAN.servers
    ]


def test_widths_add_up_to_all_rounds(summary):
    (figure,) = widths(summary)
    assert [
        sum(layer) for layer in zip(*(series.y for series in figure.series), strict=True)
    ] == pytest.approx([1] * 4)


@pytest.mark.parametrize(
    ("speedups", "words"),
    [
        ([(1, 1.5), (4, 1.1)], "faster at all 2"),
        ([(1, 0.9), (4, 0.8)], "not faster at any of 2"),
        ([(1, 1.5), (4, 1.1), (8, 0.9)], "faster up to 4 in flight, not from 8 on"),
        ([(1, 0.9), (4, 1.1), (8, 0.9)], "faster at 4 in flight, not at 1, 8"),
    ],
)
def test_crossover_in_words(speedups, words):
    assert crossover(speedups).startswith(words)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(1e-4, 1e4), min_size=1, max_size=5))
def test_log_ticks_enclose_the_values(values):
    ticks = log_ticks(values)
    if max(values) < 10 * min(values):
        assert ticks is None
    else:
        assert ticks == sorted(ticks)
        assert ticks[0] <= min(values)
        assert ticks[-1] >= max(values)


def test_log_scale_has_no_place_for_zero():
    assert log_ticks([0.0, 1.0]) is None
    assert log_ticks([]) is None


def test_six_digits():
    assert significant({"a": [1 / 3, 2, None, True, "x"], "b": 123456789.0}) == {
        "a": [0.333333, 2, None, True, "x"], "b": 123457000.0
    }  # fmt: skip
