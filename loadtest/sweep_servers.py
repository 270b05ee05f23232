"""The servers of a study: started when needed, started again when they crash, all stopped at the end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import psutil
import requests

START_TIMEOUT = 600  # seconds for one server; a loaded machine takes minutes where an idle one takes 30 s
AT_ONCE = 2  # servers starting side by side: importing keeps a core busy each
POLL = 0.5


class SweepError(RuntimeError):
    """Why a sweep can't go on, in one sentence for the user."""


class Server(Protocol):
    """What a sweep asks of a server. `pid` leads its process group; None if the sweep didn't start it."""

    url: str

    @property
    def pid(self) -> int | None: ...
    def launch(self) -> None: ...
    def ready(self) -> bool:
        """Does it generate now? Raises RuntimeError, with its last words, if it has ended."""
        ...

    def alive(self) -> bool: ...
    def stop(self) -> None: ...


class RunningServer:
    """A server somebody else started and will stop, known by its URL."""

    pid = None

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def launch(self) -> None:
        pass

    def ready(self) -> bool:
        return self.alive()

    def alive(self) -> bool:
        try:
            return requests.get(self.url + "/health", timeout=20).status_code == 200
        except requests.RequestException:
            return False

    def stop(self) -> None:
        pass


class Fleet:
    """The servers by name. `notes` is a file that names the processes for a later sweep, should this be killed.

    Args:
        makers: how to make each server; called again for each restart.
        one_at_a_time: stop the one that runs before another starts.
        waiting: told the names that start and the seconds so far, about twice a second.
    """

    def __init__(
        self,
        makers: Mapping[str, Callable[[], Server]],
        notes: Path,
        *,
        one_at_a_time: bool = False,
        waiting: Callable[[str, float], None] = lambda names, seconds: None,
    ) -> None:
        self._makers = makers
        self._notes = notes
        self._one_at_a_time = one_at_a_time
        self._waiting = waiting
        self._running: dict[str, Server] = {}

    def start(self, names: Iterable[str]) -> None:
        """Start those that don't run yet, a few side by side. Under `one_at_a_time` nothing happens: see `get`.

        Raises:
            SweepError: one did not come up.
        """
        if not self._one_at_a_time:
            self._start([name for name in names if name not in self._running])

    def get(self, name: str) -> Server:
        """The server, running; started again if it has ended."""
        server = self._running.get(name)
        if server is not None and server.alive():
            return server
        if server is not None:
            self._stop([name])
        if self._one_at_a_time:
            self._stop(list(self._running))
        self._start([name])
        return self._running[name]

    def stop(self) -> None:
        """Stop all of them."""
        self._stop(list(self._running))

    def _start(self, names: Sequence[str]) -> None:
        began = time.monotonic()
        todo, starting = list(names), set[str]()
        while todo or starting:
            while todo and len(starting) < AT_ONCE:
                name = todo.pop(0)
                server = self._running[name] = self._makers[name]()
                server.launch()
                self._write_notes()
                starting.add(name)
            elapsed = time.monotonic() - began
            for name in sorted(starting):
                try:
                    if self._running[name].ready():
                        starting.remove(name)
                except RuntimeError as error:
                    raise SweepError(f"The server {name} did not start: {error}") from error
            if elapsed > START_TIMEOUT * len(names):
                raise SweepError(f"{' and '.join(sorted(starting))} did not answer within {elapsed:.0f} s.")
            if starting:
                self._waiting(" and ".join(sorted(starting)), elapsed)
                time.sleep(POLL)

    def _stop(self, names: Sequence[str]) -> None:
        for name in names:
            self._running[name].stop()
            del self._running[name]
        self._write_notes()

    def _write_notes(self) -> None:
        pids = [server.pid for server in self._running.values() if server.pid is not None]
        notes = []
        for pid in pids:
            with contextlib.suppress(psutil.NoSuchProcess):
                notes.append({"pid": pid, "created": psutil.Process(pid).create_time()})
        if notes:
            self._notes.write_text(json.dumps(notes))
        else:
            self._notes.unlink(missing_ok=True)


def end_leftovers(notes: Path) -> int:
    """Kill the servers that a killed sweep left behind; returns how many. Others' processes are left alone."""
    ended = 0
    for note in json.loads(notes.read_text()) if notes.exists() else ():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            process = psutil.Process(note["pid"])
            if process.create_time() == note["created"]:
                os.killpg(process.pid, signal.SIGKILL)
                psutil.wait_procs([process], timeout=10)
                ended += 1
    notes.unlink(missing_ok=True)
    return ended
