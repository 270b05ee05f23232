"""Real Locust runs against servers that stall, queue, fail or die, and generators that are late or stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests
from patience import PATIENCE
from valid_run import any_run, valid_run

from jetspec_sglang.loadtest import runner
from jetspec_sglang.loadtest.config import LoadConfig
from jetspec_sglang.loadtest.metrics import e2e, lag, summarise, ttft
from jetspec_sglang.loadtest.records import REQUESTS, RUN, read_requests, read_run
from jetspec_sglang.serving import free_port


def config(url: str, **settings) -> LoadConfig:
    """Answers of 9 tokens, 20 requests a second at equal gaps, no warm-up."""
    defaults = {"arrivals": "constant", "rate": 20, "warmup_s": 0, "duration_s": 3, "max_tokens": 9}
    return LoadConfig(url=url, **(defaults | settings))


def prompts(folder: Path, *texts: str) -> str:
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps({"turns": text.split("|"), "domain": text}) + "\n" for text in texts))
    return str(file)


STALL = {"prefill": 0.02, "pace": 0.001, "stall_at": 3, "stall": 2}  # seconds, of a run of 8


def test_open_loop_shows_a_stall(tmp_path, start_fake_llm):
    """Coordinated omission: a server stops for two seconds, and ten users a second come all the same."""
    settings = config(start_fake_llm(**STALL), rate=10, duration_s=8)
    done, rows = valid_run(settings, tmp_path)
    found = summarise(rows, done)["ttft_s"]
    # A quarter of all users arrive within the stall and wait for its end: evenly spread between 0 and 2 s.
    assert found["p50"]["value"] < 0.1
    assert found["p90"]["value"] == pytest.approx(1.2, abs=0.15)
    assert found["p99"]["value"] == pytest.approx(1.95, abs=0.1)
    assert found["mean"]["value"] == pytest.approx(0.25 + 0.02, abs=0.05)


def test_closed_loop_hides_a_stall(tmp_path, start_fake_llm):
    settings = config(start_fake_llm(**STALL), arrivals="closed", duration_s=8)
    done, rows = valid_run(settings, tmp_path)
    found = summarise(rows, done)["e2e_s"]
    assert sum(e2e(row) > 1 for row in rows) == 1  # one user met it, however many would have come
    assert found["p90"]["value"] < 0.2


def test_queueing_is_in_the_latency(tmp_path, start_fake_llm):
    """One answer at a time takes 0.5 s, and four users a second come: each waits 0.25 s longer than the last."""
    settings = config(start_fake_llm(prefill=0.42, pace=0.01, slots=1), rate=4)
    _, rows = valid_run(settings, tmp_path)
    assert len(rows) == 12
    for number, row in enumerate(rows):
        assert ttft(row) == pytest.approx(0.42 + 0.25 * number, abs=0.2)
    assert ttft(rows[-1]) > 3


def test_pool_grows_with_the_requests_in_flight(tmp_path, start_fake_llm):
    """50 at once, five times what the pool begins with: nobody waits for somebody else's answer."""
    settings = config(start_fake_llm(prefill=5), arrivals="bursts", burst=50, rate=25, max_tokens=1)
    _, rows = any_run(settings, tmp_path)
    assert len(rows) == 100
    assert max(map(lag, rows)) < 3
    assert runner.POOL < 50


def test_every_failure_is_counted(tmp_path, start_fake_llm):
    workload = prompts(tmp_path, "fine", "<refuse>", "<break>")
    done, rows = any_run(config(start_fake_llm(), workload=workload), tmp_path)
    found = summarise(rows, done)
    assert found["sent"] == 60
    assert found["error_rate"]["value"] == pytest.approx(2 / 3)
    for row in rows:
        if row.domain == "fine":
            assert row.ok
        elif row.domain == "<refuse>":
            assert (row.status, row.chunks) == (503, [])
            assert "no room" in row.error
        else:
            assert row.status == 200
            assert row.chunks
            assert not row.ok


def test_a_server_that_dies_leaves_errors_not_gaps(tmp_path, start_fake_llm):
    done = runner.run(config(start_fake_llm(die_after=20)), tmp_path)
    rows = read_requests(tmp_path)
    found = summarise(rows, done)
    assert len({row.id for row in rows}) == len(done.schedule_s) == found["sent"] == 60
    assert 15 <= found["completed"] <= 20
    assert found["failed"] == 60 - found["completed"]
    assert any("Connection" in row.error for row in rows if not row.ok)
    assert not done.valid
    assert "The server can't be reached after the run" in done.reasons[-1]


def test_too_slow_is_failed(tmp_path, start_fake_llm):
    _, rows = any_run(config(start_fake_llm(prefill=3), timeout_s=0.5, rate=5), tmp_path)
    assert len(rows) == 15
    for row in rows:
        assert row.error == "not complete after 0.5 s"
        assert 0.49 < row.end_s - row.start_s < 1.5


def test_a_late_generator_makes_the_run_invalid(tmp_path, start_fake_llm, monkeypatch):
    monkeypatch.setattr(runner, "LOCUSTFILE", Path(__file__).with_name("lagging_locustfile.py"))
    done = runner.run(config(start_fake_llm()), tmp_path)
    assert not done.valid
    assert any("started requests late" in reason for reason in done.reasons)
    assert any("timers fired late" in reason for reason in done.reasons)
    assert done.lag["max_s"] > 0.1


def test_turns_follow_each_other(tmp_path, start_fake_llm):
    settings = config(
        start_fake_llm(), workload=prompts(tmp_path, "one|two|<refuse>|four"), max_turns=4, rate=2, api="chat"
    )
    _, rows = any_run(settings, tmp_path)
    turns = {row.id: row for row in rows}
    assert len(turns) == 6 * 3  # the third turn fails and ends its conversation
    for number in range(6):
        first, second, third = (turns[f"{number}.{turn}"] for turn in range(3))
        assert second.scheduled_s == first.end_s
        assert third.scheduled_s == second.end_s
        assert [first.ok, second.ok, third.ok] == [True, True, False]


def test_frontend_program(tmp_path, start_fake_llm):
    """`sglang.lang` is imported before the run's zero, so that it makes nobody late."""
    workload = prompts(tmp_path, "one|two", "<refuse>")
    settings = config(
        start_fake_llm(prefill=0.5, chunk=4),
        workload=workload,
        max_turns=2,
        rate=4,
        api="program",
        timeout_s=20,
    )
    done, rows = valid_run(settings, tmp_path)
    found = summarise(rows, done)
    assert found["completed"] == 12
    assert found["failed"] == 6
    assert found["ttft_s"]["p50"]["value"] == pytest.approx(0.5, abs=0.1)
    assert found["tpot_s"]["p50"]["value"] == pytest.approx(0.01, rel=0.2)
    assert found["tau"]["value"] == 4


def test_two_processes_share_the_schedule(tmp_path, start_fake_llm):
    done, rows = any_run(config(start_fake_llm()), tmp_path, workers=2)
    assert done.workers == 2
    assert [row.scheduled_s for row in rows] == pytest.approx(done.schedule_s)
    assert len({row.id for row in rows}) == 60


def test_a_run_never_overwrites_another(tmp_path, start_fake_llm):
    settings = config(start_fake_llm(), duration_s=0.5)
    runner.run(settings, tmp_path)
    before = (tmp_path / REQUESTS).read_bytes()
    with pytest.raises(runner.RunError, match="already holds a run"):
        runner.run(settings, tmp_path)
    assert (tmp_path / REQUESTS).read_bytes() == before


def test_no_server_no_run(tmp_path):
    with pytest.raises(runner.RunError, match="refused"):
        runner.run(config("http://127.0.0.1:9"), tmp_path)


def locust(*words: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "locust", "-f", str(runner.LOCUSTFILE), *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_for(condition, seconds: float = PATIENCE):
    """What `condition` returns, once it is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
    return found


def test_locust_with_master_and_workers(tmp_path, start_fake_llm):
    """As on several machines: processes that know of each other by the master's port alone. Closed loop."""
    port = str(free_port())
    settings = config(start_fake_llm(prefill=0.2), arrivals="closed", concurrency=4)
    master = ["--master", "--master-bind-port", port, "--expect-workers", "2", "--headless", "--users", "4"]
    master += ["--spawn-rate", "4", "--folder", str(tmp_path), *settings.arguments()]
    processes = [
        locust(*master),
        *(locust("--worker", "--master-port", port) for _ in range(2)),
    ]
    for process in processes:
        assert process.wait(PATIENCE) == 0
    done, rows = read_run(tmp_path), read_requests(tmp_path)
    assert done.workers == 2
    parities = {int(row.id.split(".")[0]) % 2 for row in rows}
    assert parities == {0, 1}  # each worker numbers its own
    assert len({row.id for row in rows}) == len(rows) == pytest.approx(4 * 3 / 0.28, abs=6)


def test_locusts_page(tmp_path, start_fake_llm):
    """Started from the page, with a rate given there; the run ends by itself, the page stays."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    settings = config(start_fake_llm())
    server = locust("--web-port", str(port), "--folder", str(tmp_path), *settings.arguments())
    try:
        page = wait_for(lambda: answer(url))
        assert "warmup_s" in page
        form = {"user_count": 5, "spawn_rate": 5, "host": settings.url, "rate": "10"}
        assert requests.post(f"{url}/swarm", data=form, timeout=10).json()["success"]
        wait_for((tmp_path / RUN).exists)
        assert answer(url)
    finally:
        server.terminate()
        server.wait(PATIENCE)
    assert read_run(tmp_path).config["rate"] == 10
    assert len(read_requests(tmp_path)) == 30


def answer(url: str) -> str:
    try:
        return requests.get(url, timeout=5).text
    except requests.ConnectionError:
        return ""


def test_a_stopped_run_keeps_its_records_and_says_so(tmp_path, start_fake_llm):
    settings = config(start_fake_llm(prefill=0.5), duration_s=60, rate=10)
    process = locust("--headless", "--users", "10", "--folder", str(tmp_path), *settings.arguments())
    wait_for(lambda: (tmp_path / REQUESTS).exists() and (tmp_path / REQUESTS).stat().st_size > 0)
    process.terminate()
    process.wait(PATIENCE)
    done, rows = read_run(tmp_path), read_requests(tmp_path)
    assert not done.valid
    assert done.reasons[0] == "It was stopped before its end."
    cut = [row for row in rows if row.error == "the run was stopped"]
    assert 3 <= len(cut) <= 12  # those in flight
    assert all(row.ok for row in rows if row not in cut)


def test_locust_ends_with_a_killed_parent(tmp_path, start_fake_llm):
    """Otherwise it would go on loading a server that the resumed sweep measures."""
    settings = config(start_fake_llm(), duration_s=600)
    program = (
        "import sys; from pathlib import Path;"
        "from jetspec_sglang.loadtest import config, runner;"
        "runner.run(config.LoadConfig.model_validate_json(sys.argv[1]), Path(sys.argv[2]))"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, settings.model_dump_json(), str(tmp_path)])
    wait_for(lambda: (tmp_path / REQUESTS).exists() and (tmp_path / REQUESTS).stat().st_size > 0)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    wait_for((tmp_path / RUN).exists, 20)
    assert not read_run(tmp_path).valid


def test_command(tmp_path, start_fake_llm):
    words = ["--url", start_fake_llm(chunk=4), "--rate", "5", "--duration-s", "2", "--warmup-s", "0"]
    words += ["--max-tokens", "9", "--slo-ttft-s", "0.5", "--arrivals", "constant", "--out", str(tmp_path)]
    done = jetspec_run(*words)
    run = read_run(tmp_path)
    assert done.returncode == (0 if run.valid else 1), done.stdout
    assert all(reason in " ".join(done.stdout.split()) for reason in run.reasons)
    assert "10 requests in 2 s: 10 complete, 0 failed." in done.stdout
    assert "time to first token" in done.stdout
    assert "Goodput 5.00 requests/s: 100.0 % met every bound." in done.stdout
    assert "τ 4.00 at 20.0 nodes a round, 80 % of them for nothing." in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--arrivals", "ramp"], "rate_to goes with arrivals ramp"),
        (["--workload", "none.jsonl"], "can't be read"),
        (["--rate", "0.001", "--arrivals", "constant", "--warmup-s", "1"], "No request falls into"),
    ],
)
def test_command_says_what_is_wrong(tmp_path, words, message):
    done = jetspec_run(*words, "--out", str(tmp_path))
    assert done.returncode == 2
    assert message in done.stdout


def jetspec_run(*words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", "from jetspec_sglang.cli import main; main()", "loadtest", "run", *words]
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "100"}, timeout=120
    )
