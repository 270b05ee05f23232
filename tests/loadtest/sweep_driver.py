"""`sweep_driver.py CONFIG OUT`: a sweep over fake servers, in a process of its own that a test can kill.

A server's flags are options of `fake_llm.py`. Its process id is appended to OUT.pids. What happens is printed, a
line each; behind `answered` the sweep waits for a line from the test, so that a signal falls into a run.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from jetspec_sglang.loadtest.runner import Progress
from jetspec_sglang.loadtest.sweep import sweep
from jetspec_sglang.loadtest.sweep_config import read_config
from jetspec_sglang.loadtest.sweep_plan import Cell

FAKE = Path(__file__).with_name("fake_llm.py")


class FakeServer:
    def __init__(self, flags: Sequence[str], pids: Path) -> None:
        self.flags, self.pids = flags, pids
        self.process: subprocess.Popen | None = None

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process else None

    def launch(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(FAKE), *self.flags],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline())}"
        with self.pids.open("a") as file:
            file.write(f"{self.process.pid}\n")
        print("up", self.process.pid, flush=True)

    def ready(self) -> bool:
        if self.process.poll() is not None:
            raise RuntimeError("the fake server has ended")
        return True


class Fakes:
    names = {"fake": "builtin:fake"}  # noqa: RUF012

    def __init__(self, pids: Path) -> None:
        self.pids = pids

    def make(self, flags: Sequence[str]) -> FakeServer:
        return FakeServer(flags, self.pids)

    def stop(self, servers: Sequence[FakeServer]) -> None:
        for server in servers:
            server.process.kill()
            server.process.wait()
            print("down", server.pid, flush=True)
            server.process = None


class Printing:
    """One line for everything a test waits for."""

    def starting(self, names: str, seconds: float) -> None:
        pass

    def cell(self, cell: Cell, number: int, total: int) -> None:
        print("cell", cell.name, flush=True)

    def progress(self, progress: Progress) -> None:
        if progress.completed:
            print("answered", flush=True)
            sys.stdin.readline()

    def event(self, text: str) -> None:
        print("event", text, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    config, out = read_config(Path(sys.argv[1])), Path(sys.argv[2])
    sweep(config, out, Fakes(Path(f"{out}.pids")), {"cores": os.cpu_count()}, Printing())
    print("finished", flush=True)
