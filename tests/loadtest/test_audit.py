"""The audit passes on what was measured and fails when anything of it was altered."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import made_study
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jetspec_sglang.loadtest import audit as audit_module
from jetspec_sglang.loadtest.audit import audit
from jetspec_sglang.loadtest.report import write_report
from jetspec_sglang.loadtest.report_summary import cell_folder

PLAN = made_study.config(("plain", "adaptive"), (2,), (2,), repetitions=1, seconds=4)
CELL = "adaptive/rate-2/1"
RESULTS = Path(audit_module.__file__).parent / "results"


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = made_study.write_study(tmp_path_factory.mktemp("good") / "study", PLAN)
    write_report(folder)
    return folder


@pytest.fixture
def study(good, tmp_path):
    return shutil.copytree(good, tmp_path / "study")


def test_good_study_passes(good):
    assert audit(good) == []


@pytest.mark.parametrize("how", ["script", "code"])
def test_runs_on_a_bare_python(good, how):
    """-S and -I: no installed package can be imported, and the folder is known by its place alone."""
    script = Path(audit_module.__file__)
    words = (
        [str(script)]
        if how == "script"
        else ["-c", f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"]
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", *words, str(good)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "every published number follows" in done.stdout


def places(value: object, path: tuple = ()) -> list[tuple]:
    """Paths of all numbers and texts within a JSON value."""
    if isinstance(value, dict):
        return [place for key, inner in value.items() for place in places(inner, (*path, key))]
    if isinstance(value, list):
        return [place for i, inner in enumerate(value) for place in places(inner, (*path, i))]
    return [path]


def altered(value: object) -> object:
    """Another value of the same kind, as close as it gets."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * (1 + 1e-9) + 1e-9
    return f"{value}x"


def alter(root: object, path: tuple) -> object:
    inner = root
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = altered(inner[path[-1]])
    return root


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_altered_raw_value_is_found(good, tmp_path, data):
    cell = data.draw(st.sampled_from([cell.name for cell in PLAN.cells()]))
    raw = [
        cell_folder(good, cell) / "run.json",
        cell_folder(good, cell) / "requests.jsonl",
        good / "study.json",
    ]
    file = data.draw(st.sampled_from(raw))
    before = file.read_text()
    if file.suffix == ".jsonl":
        rows = before.splitlines()
        number = data.draw(st.integers(0, len(rows) - 1))
        row = json.loads(rows[number])
        rows[number] = json.dumps(alter(row, data.draw(st.sampled_from(places(row)))))
        text = "\n".join(rows) + "\n"
    else:
        content = json.loads(before)
        text = json.dumps(alter(content, data.draw(st.sampled_from(places(content)))), indent=1)
    try:
        file.write_text(text)
        assert audit(good) != []
    finally:
        file.write_text(before)


def test_altered_latency_is_named_with_its_cell_and_number(study):
    file = cell_folder(study, CELL) / "requests.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows:
        row["end_s"] += 1
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = audit(study)
    assert any(f"cells › {CELL} › numbers › e2e_s › p50 › value: published" in line for line in found)
    assert any("adaptive at rate 2 › numbers › e2e_s.p50.value › median" in line for line in found)
    assert any(f"raw › cells/{CELL}/requests.jsonl" in line for line in found)


@pytest.mark.parametrize("name", ["run.json", "requests.jsonl"])
def test_missing_raw_file_is_named(study, name):
    (cell_folder(study, CELL) / name).unlink()
    (line,) = audit(study)
    assert f"cell {CELL}" in line
    assert name in line


@pytest.mark.parametrize("name", ["summary.json", "points.csv", "speedups.csv", "report.html", "stages.png"])
def test_missing_published_file_is_named(study, name):
    (study / "report" / name).unlink()
    assert audit(study) == [f"{name} is missing."]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_altered_published_number_is_named(good, data):
    file = good / "report" / "summary.json"
    before = file.read_text()
    content = json.loads(before)
    path = data.draw(st.sampled_from(places(content)))
    try:
        file.write_text(json.dumps(alter(content, path)))
        (line,) = audit(good)
        assert "published" in line
        assert str(path[-1]) in line
    finally:
        file.write_text(before)


def test_altered_csv_cell_is_named(study):
    file = study / "report" / "speedups.csv"
    head, row, *rest = file.read_text().splitlines()
    words = row.split(",")
    words[3] = "9.99"
    file.write_text("\n".join([head, ",".join(words), *rest]) + "\n")
    (line,) = audit(study)
    assert "median: published '9.99'" in line
    assert "adaptive, rate, 2.0" in line


def test_row_taken_out_of_a_csv_is_found(study):
    file = study / "report" / "points.csv"
    file.write_text("\n".join(file.read_text().splitlines()[:-1]) + "\n")
    assert audit(study) == ["points.csv has 4 rows as published; the raw files give 5."]


@pytest.mark.parametrize("where", ['id="summary">', 'id="figures">', "<td>"])
def test_number_altered_in_the_page_is_found(study, where):
    file = study / "report" / "report.html"
    text = file.read_text()
    begin = text.index(where) + len(where)
    digit = next(i for i in range(begin, len(text)) if text[i] in "12345678")
    file.write_text(text[:digit] + str(int(text[digit]) + 1) + text[digit + 1 :])
    found = audit(study)
    assert found
    assert all(line.startswith("report.html") for line in found)


def test_picture_of_other_numbers_is_found(study):
    summary = study / "report" / "summary.json"
    other = made_study.write_study(study.parent / "other", PLAN.model_copy(update={"title": "other"}))
    write_report(other)
    shutil.copy(other / "report" / "stages.png", study / "report" / "stages.png")
    assert summary.exists()
    assert audit(study) == ["stages.png was drawn from other numbers."]


def test_page_of_something_else_is_refused(study):
    (study / "report" / "report.html").write_text("<html></html>")
    assert audit(study) == ["report.html is no page of this program."]


def test_folder_without_a_study_is_refused(tmp_path):
    assert "the folder of a sweep" in audit(tmp_path)[-1]


def test_usage_and_status(good, capsys):
    assert audit_module.main([]) == 2
    assert audit_module.main([str(good)]) == 0
    assert audit_module.main([str(good / "nowhere")]) == 1
    assert "mismatches" in capsys.readouterr().out


@pytest.mark.parametrize("study", sorted(RESULTS.glob("*/study.json")), ids=lambda file: file.parent.name)
def test_published_studies_pass(study):
    assert audit(study.parent) == []
