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
POLL = 0.5
NOTES = ".running.json"


class SweepError(RuntimeError):
    """Why a sweep can't go on, in one sentence for the user."""


class Server(Protocol):
    """What a sweep asks of a server. `pid` leads its process group; None if the sweep didn't start it."""

    @property
    def url(self) -> str: ...
    @property
    def pid(self) -> int | None: ...
    def launch(self) -> None: ...
    def ready(self) -> bool:
        """Does it generate now? Raises RuntimeError, with its last words, if it has ended."""
        ...


class Launcher(Protocol):
    """How servers are started and stopped. `names` gives folders of this machine the name they have in flags."""

    names: Mapping[str, str]

    def make(self, flags: Sequence[str]) -> Server:
        """A server to be launched with these flags."""
        ...

    def stop(self, servers: Sequence[Server]) -> None:
        """End them side by side; a second Ctrl-C does not cut this short."""
        ...


class RunningServer:
    """A server somebody else started and will stop, known by its URL."""

    pid = None

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def launch(self) -> None:
        """Raises RuntimeError: nothing answers there, and waiting would not help."""
        try:
            requests.get(self.url + "/health", timeout=20)
        except requests.RequestException as error:
            raise RuntimeError(f"nothing answers at {self.url}; start it first.") from error

    def ready(self) -> bool:
        try:
            return requests.get(self.url + "/health", timeout=20).status_code == 200
        except requests.RequestException:
            return False


class Fleet:
    """The servers by name.

    Args:
        makers: how to make each server; called again for each restart.
        folder: the study's; a note there names the processes for a later sweep, should this one be killed.
        one_at_a_time: stop the one that runs before another starts.
        waiting: told the names that start and the seconds so far, about twice a second.
    """

    def __init__(
        self,
        makers: Mapping[str, Callable[[], Server]],
        launcher: Launcher,
        folder: Path,
        *,
        one_at_a_time: bool = False,
        waiting: Callable[[str, float], None] = lambda name, seconds: None,
    ) -> None:
        self._makers = makers
        self._launcher = launcher
        self._notes = folder / NOTES
        self._one_at_a_time = one_at_a_time
        self._waiting = waiting
        self._running: dict[str, Server] = {}

    def start(self, names: Iterable[str]) -> None:
        """Start those that don't run yet, one by one. Under `one_at_a_time` nothing happens: see `get`.

        Raises:
            SweepError: one did not come up.
        """
        if not self._one_at_a_time:
            self._start([name for name in names if name not in self._running])

    def get(self, name: str) -> Server:
        """The server, running; started if it was not."""
        if name not in self._running:
            if self._one_at_a_time:
                self.stop()
            self._start([name])
        return self._running[name]

    def answers(self, name: str) -> bool:
        """Does it still generate?"""
        try:
            return self._running[name].ready()
        except RuntimeError:
            return False

    def drop(self, name: str) -> None:
        """Stop one, so that the next `get` starts it anew."""
        self._stop([name])

    def stop(self) -> None:
        """Stop all of them."""
        self._stop(list(self._running))

    def _start(self, names: Sequence[str]) -> None:
        """One at a time: a server that measures its rounds as it starts must have the machine to itself."""
        for name in names:
            server = self._running[name] = self._makers[name]()
            began = time.monotonic()
            try:
                server.launch()
            except RuntimeError as error:
                raise SweepError(f"The server {name} can't be used: {error}") from error
            self._write_notes()
            while not self._started(name):
                elapsed = time.monotonic() - began
                if elapsed > START_TIMEOUT:
                    raise SweepError(f"{name} did not answer within {elapsed:.0f} s.")
                self._waiting(name, elapsed)
                time.sleep(POLL)

    def _started(self, name: str) -> bool:
        try:
            return self._running[name].ready()
        except RuntimeError as error:
            raise SweepError(f"The server {name} did not start: {error}") from error

    def _stop(self, names: Sequence[str]) -> None:
        launched = [self._running[name] for name in names if self._running[name].pid is not None]
        self._launcher.stop(launched)
        for name in names:
            del self._running[name]
        self._write_notes()

    def _write_notes(self) -> None:
        notes = []
        for server in self._running.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                if server.pid is not None:
                    notes.append({"pid": server.pid, "created": psutil.Process(server.pid).create_time()})
        if notes:
            self._notes.write_text(json.dumps(notes))
        else:
            self._notes.unlink(missing_ok=True)


def end_leftovers(folder: Path) -> int:
    """Kill the servers, and Locust, that a killed sweep of this folder left behind; returns how many groups.

    Only processes that the sweep's own note names, and Locust writing below `folder`.
    """
    notes = folder / NOTES
    left = []
    for note in json.loads(notes.read_text()) if notes.exists() else ():
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(note["pid"])
            if process.create_time() == note["created"]:
                left.append(process)
    inside = f"{folder.resolve()}{os.sep}"
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if "locust" in words and any(word.startswith(inside) for word in words):
                left.append(process)
    for process in left:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(os.getpgid(process.pid), signal.SIGKILL)
    psutil.wait_procs(left, timeout=10)
    notes.unlink(missing_ok=True)
    return len(left)
