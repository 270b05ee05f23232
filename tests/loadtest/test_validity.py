import pytest
from requests_made import failed, made

from jetspec_sglang.loadtest.validity import lateness, problems

ON_TIME = lateness([])


def run(late: float, count: int = 200) -> list:
    """The first ten of `count` requests started `late` seconds late; all have a TTFT of 0.1 s after that."""
    rows = []
    for n in range(count):
        start = n + (late if n < 10 else 0)
        first = max(start, n + 0.1)
        rows.append(
            made(n, id=f"{n}.0", start_s=start, first_token_s=first, chunks=[[first, 1]], end_s=first + 0.1)
        )
    return rows


def found(rows, loop=ON_TIME, schedule=range(200), stopped=False) -> list[str]:
    return problems(rows, schedule, loop, stopped_early=stopped)


def test_a_generator_on_time():
    assert found(run(0)) == found(run(0.015)) == []


def test_a_late_generator():
    (reason,) = found(run(0.05))
    assert reason == "The generator started requests late: p99 50 ms, at most 20 ms is accepted."


def test_one_late_request_in_a_thousand_is_none():
    rows = run(0, 1000)
    rows[0].start_s = 0.09
    assert found(rows, schedule=range(1000)) == []


def test_what_is_late_depends_on_the_latencies_measured():
    slow = [made(n, id=f"{n}.0", first_token_s=n + 2, chunks=[[n + 2, 1]], end_s=n + 3) for n in range(200)]
    for row in slow:
        row.start_s = row.scheduled_s + 0.15
    assert found(slow) == []


def test_late_timers():
    (reason,) = found(run(0), loop={**ON_TIME, "p99_s": 0.03})
    assert reason.startswith("The generator's timers fired late: p99 30 ms")


def test_later_turns_have_no_due_time_of_their_own():
    rows = [made(n, id=f"{n}.1", turn=1, start_s=n + 0.09) for n in range(200)]
    assert found(rows, schedule=[]) == []


def test_missing_records():
    assert found(run(0)[:-2]) == ["2 of 200 scheduled requests have no record."]


def test_stopped_early():
    assert found(run(0), stopped=True) == ["It was stopped before its end."]


def test_nothing_measured():
    assert found([made(phase="warmup")], schedule=None) == ["No request falls into the measured window."]


def test_failures_alone_do_not_make_a_run_invalid():
    assert found([failed(n, id=f"{n}.0") for n in range(200)]) == []


def test_lateness():
    late = lateness([n / 100 for n in range(101)])
    assert (late["p50_s"], late["p99_s"], late["max_s"]) == (0.5, pytest.approx(0.99), 1.0)
