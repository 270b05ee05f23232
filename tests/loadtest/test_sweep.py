"""Sweeps over fake servers: servers and sweeps are killed, and the study comes out whole."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml
from patience import PATIENCE

from jetspec_sglang.loadtest.report_summary import STUDY, cell_folder, summarise_study
from jetspec_sglang.loadtest.sweep_config import read_config

DRIVER = Path(__file__).with_name("sweep_driver.py")
FAST, SLOW = ["--pace", "0.004"], ["--pace", "0.008"]
CONFIG = {
    "title": "fakes",
    "servers": {"plain": {"args": SLOW}, "fast": {"args": FAST}},
    "baseline": "plain",
    "rates": [4],
    "repetitions": 1,
    "run": {"duration_s": 1, "warmup_s": 0, "max_tokens": 16},
}


# Long enough for the sweep to see the first answer before the last.
LONG = CONFIG["run"] | {"duration_s": 5}


class Sweep:
    """The driver as a process; `lines` are read as they come."""

    def __init__(self, folder: Path, config: dict) -> None:
        file = folder / "sweep.yaml"
        file.write_text(yaml.safe_dump(config, sort_keys=False))
        self.out, self.pids = folder / "study", folder / "study.pids"
        self.process = subprocess.Popen(
            [sys.executable, str(DRIVER), str(file), str(self.out)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.lines: list[str] = []

    def until(self, line: str) -> None:
        """Read on to a line that begins like this; a sweep that waits behind `answered` is let go first."""
        while not self.lines or not self.lines[-1].startswith(line):
            if self.lines and self.lines[-1] == "answered":
                print(file=self.process.stdin, flush=True)
            text = self.process.stdout.readline()
            assert text, self.process.stderr.read()
            self.lines.append(text.strip())

    def finish(self) -> "Sweep":
        self.until("finished")
        assert self.process.wait(PATIENCE) == 0
        return self

    def measured(self) -> list[str]:
        return [line.removeprefix("cell ") for line in self.lines if line.startswith("cell ")]

    def servers(self) -> list[int]:
        return [int(pid) for pid in self.pids.read_text().split()] if self.pids.exists() else []


@pytest.fixture
def sweep(tmp_path):
    """Starts sweeps of one folder; afterwards nothing of them may run."""
    started: list[Sweep] = []

    def start(**changes: object) -> Sweep:
        started.append(Sweep(tmp_path, CONFIG | changes))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()
        for pipe in (one.process.stdin, one.process.stdout, one.process.stderr):
            pipe.close()
    for pid in {pid for one in started for pid in one.servers() if alive(pid)}:
        os.kill(pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def cell_names(one: Sweep) -> list[str]:
    return [cell.name for cell in read_config(one.out.parent / "sweep.yaml").cells()]


def run_of(one: Sweep, name: str) -> dict:
    return json.loads((cell_folder(one.out, name) / "run.json").read_text())


def test_whole_study_is_measured_in_order_and_all_is_stopped(sweep):
    one = sweep(concurrencies=[2]).finish()
    assert one.measured() == cell_names(one) == ["plain/rate-4/1", "fast/rate-4/1", "fast/concurrency-2/1",
                                                 "plain/concurrency-2/1"]  # fmt: skip
    assert len(one.servers()) == 2
    assert not any(map(alive, one.servers()))
    assert set(summarise_study(one.out)["cells"]) == set(cell_names(one))
    assert sorted(path.name for path in one.out.iterdir() if not path.name.startswith(".")) == [
        "cells", "half", "study.json"
    ]  # fmt: skip


def test_servers_of_one_cell_get_the_same_arrivals(sweep):
    one = sweep().finish()
    schedules = [run_of(one, name)["schedule_s"] for name in cell_names(one)]
    assert schedules[0] == schedules[1] != []
    assert run_of(one, "plain/rate-4/1")["server_before"]["model_path"] == "builtin:fake"


def test_killed_server_is_started_again_and_its_cell_repeated(sweep):
    one = sweep(run=LONG)
    one.until("answered")
    first = one.servers()[0]
    os.kill(first, signal.SIGKILL)
    one.until("event plain/rate-4/1")
    one.finish()
    assert len(one.servers()) == 3
    events = json.loads((one.out / STUDY).read_text())["events"]
    assert [event["cell"] for event in events if "server ended" in event["what"]] == ["plain/rate-4/1"]
    assert summarise_study(one.out)["cells"]["plain/rate-4/1"]["numbers"]["failed"] == 0


def test_server_that_always_ends_stops_the_sweep_with_a_reason(sweep):
    one = sweep(servers={"plain": {"args": [*SLOW, "--die-after", "2"]}})
    with contextlib.suppress(AssertionError):
        one.until("finished")
    assert one.process.wait(PATIENCE) == 1
    assert not any(map(alive, one.servers()))
    study = json.loads((one.out / STUDY).read_text())
    assert len(study["events"]) == 3


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_killed_sweep_goes_on_and_gives_the_same_table(sweep, how):
    one = sweep(run=LONG)
    one.until("cell fast/rate-4/1")
    one.until("answered")
    one.process.send_signal(how)
    one.process.wait(PATIENCE)
    if how != signal.SIGKILL:  # who was asked leaves nothing behind
        assert not any(map(alive, one.servers()))
    finished = cell_folder(one.out, "plain/rate-4/1") / "requests.jsonl"
    before = finished.read_bytes()
    two = sweep(run=LONG).finish()
    assert two.measured() == cell_names(two)[1:]
    assert finished.read_bytes() == before
    assert not any(map(alive, two.servers()))
    cells = summarise_study(two.out)["cells"]
    assert list(cells) == cell_names(two)
    for name, cell in cells.items():
        numbers = cell["numbers"]
        assert numbers["sent"] == numbers["completed"] == len(run_of(two, name)["schedule_s"])


def test_finished_study_is_left_alone_and_may_grow(sweep):
    one = sweep().finish()
    again = sweep().finish()
    assert again.measured() == []
    assert len(again.servers()) == len(one.servers())
    more = sweep(repetitions=2).finish()
    assert more.measured() == ["fast/rate-4/2", "plain/rate-4/2"]


def test_other_study_in_the_folder_is_refused(sweep):
    sweep().finish()
    other = sweep(run=CONFIG["run"] | {"max_tokens": 8})
    assert other.process.wait(PATIENCE) == 1
    assert "holds a study with other servers or runs" in other.process.stderr.read()


def test_second_sweep_of_a_folder_is_refused_while_one_runs(sweep):
    endless = CONFIG["run"] | {"duration_s": 2 * PATIENCE}
    one = sweep(run=endless)
    one.until("answered")
    two = sweep(run=endless)
    assert two.process.wait(PATIENCE) == 1
    assert "Another sweep is writing" in two.process.stderr.read()
    one.process.send_signal(signal.SIGTERM)
    one.process.wait(PATIENCE)


def test_one_at_a_time_never_has_two_servers(sweep):
    one = sweep(one_at_a_time=True).finish()
    first, second = one.servers()
    assert [line for line in one.lines if line.startswith(("up", "down"))] == [
        f"up {first}", f"down {first}", f"up {second}", f"down {second}"
    ]  # fmt: skip
