import dataclasses
import json

import pytest
from requests_made import made, made_run

from jetspec_sglang.loadtest.records import (
    REQUESTS,
    RUN,
    RecordError,
    parse_requests,
    read_requests,
    read_run,
    to_line,
    write_requests,
    write_run,
)


def test_what_is_written_is_read(tmp_path):
    rows = [made(1.0, id="1.0", error="odd \u2028 line\n"), made(0.5, id="0.0", histogram=[1, 2])]
    write_requests(tmp_path, rows)
    write_run(tmp_path, made_run())
    assert read_requests(tmp_path) == rows[::-1]  # by due time
    assert read_run(tmp_path) == made_run()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"phase": "later"}, "phase is 'later'"),
        ({"end_s": 0.1}, "its times are not in order"),
        ({"start_s": float("inf")}, "a time is no number"),
        ({"first_token_s": None, "chunks": []}, "it is complete but has no first token"),
        ({"first_token_s": 0.75}, "first_token_s is not the first chunk's arrival"),
    ],
)
def test_what_no_run_can_have_written_is_refused(change, message):
    row = dataclasses.asdict(made(0.5)) | change
    with pytest.raises(RecordError, match="here, line 1") as refused:
        parse_requests(json.dumps(row), "here")
    assert message in str(refused.value)


@pytest.mark.parametrize("line", ["[]", "{}", "no json", '{"id": "0.0", "unheard_of": 1}'])
def test_other_lines_are_refused(line):
    with pytest.raises(RecordError, match="here, line 2 is no request"):
        parse_requests(to_line(made(0.5)) + line, "here")


def test_missing_files_are_refused(tmp_path):
    for read, name in ((read_requests, REQUESTS), (read_run, RUN)):
        with pytest.raises(RecordError, match=f"{name} can't be read"):
            read(tmp_path)


def test_another_format_is_refused(tmp_path):
    write_run(tmp_path, dataclasses.replace(made_run(), format=0))
    with pytest.raises(RecordError, match="has format 0; this version reads format 1"):
        read_run(tmp_path)
