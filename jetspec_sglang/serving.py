"""An SGLang server as a child process: start it, wait for it, ask it, stop it with all its children."""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import requests

HOST = "127.0.0.1"
PROGRAM = ("-m", "sglang.launch_server")  # what Python runs; replaced in tests


class ServerError(RuntimeError):
    """The server didn't start; the message ends with the last lines of its log."""


def free_port() -> int:
    """A TCP port on loopback that nobody listens on now, below those that systems give away by themselves.

    A server listens half a minute or more after its port was drawn; until then a connection of any process
    could take a port of the system's own range (from 32768 on Linux, 49152 elsewhere). SGLang draws from 22000 up.

    Raises ServerError if 64 ports in a row are taken.
    """
    for _ in range(64):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind((HOST, 10_000 + secrets.randbelow(12_000)))
            return probe.getsockname()[1]
    raise ServerError(f"There is no free TCP port between 10000 and 21999 on {HOST}.")


class Server:
    """`python -m sglang.launch_server ARGS` in a process group of its own; `program` replaces what Python runs.

    Use as a context manager, or `start()` and `stop()`. `log` is the file that holds its output.
    """

    def __init__(
        self,
        args: Sequence[str],
        *,
        env: dict[str, str] | None = None,
        port: int | None = None,
        program: Sequence[str] | None = None,
    ) -> None:
        self.port = port or free_port()
        self.url = f"http://{HOST}:{self.port}"
        self.program = program or PROGRAM
        self.args = [*args, "--host", HOST, "--port", str(self.port)]
        self.env = {**os.environ, **(env or {})}
        self.log = Path(tempfile.gettempdir()) / f"jetspec-server-{os.getpid()}-{self.port}.log"
        self._process: subprocess.Popen | None = None

    def start(
        self, timeout: float = 300, waiting: Callable[[float], None] = lambda seconds: None
    ) -> "Server":
        """Start and wait until it generates. `waiting(seconds so far)` is called about twice a second.

        Raises ServerError if the process ends or `timeout` (seconds) passes first.
        """
        self.launch()
        try:
            self.wait(timeout, waiting)
        except BaseException:
            self.stop()
            raise
        return self

    def launch(self) -> None:
        """Start the process and return at once; `wait` or `ready` tell when it generates.

        Raises ServerError if something listens on its port already, whose answers would be taken for its own.
        """
        with socket.socket() as probe:
            if probe.connect_ex((HOST, self.port)) == 0:
                raise ServerError(f"Port {self.port} on {HOST} is in use; give another one.")
        with self.log.open("wb") as log, _unhurried():
            self._process = subprocess.Popen(
                [sys.executable, *self.program, *self.args],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.env,
                start_new_session=True,
            )

    def wait(self, timeout: float = 300, waiting: Callable[[float], None] = lambda seconds: None) -> None:
        """Wait until it generates; see `start`. A server that fails is not stopped here."""
        began = time.monotonic()
        while not self.ready():
            elapsed = time.monotonic() - began
            if elapsed > timeout:
                raise ServerError(f"The server did not answer within {timeout:.0f} s.\n{self.tail()}")
            waiting(elapsed)
            time.sleep(0.5)

    def ready(self) -> bool:
        """Does it generate now? Raises ServerError if its process has ended."""
        healthy = self._healthy()
        if not self.alive():  # whoever answered
            status = self._process.returncode if self._process else None
            raise ServerError(f"The server ended with status {status}.\n{self.tail()}")
        return healthy

    def _healthy(self) -> bool:
        try:
            return requests.get(self.url + "/health_generate", timeout=20).status_code == 200
        except requests.RequestException:
            return False

    def stop(self) -> None:
        """End the whole process group, politely first."""
        stop_all([self])

    def keep(self) -> int:
        """Let it run on after this process; returns its process id, and `stop` does nothing from now on."""
        process, self._process = self._process, None
        if process is None:
            raise ServerError("The server is not running.")
        process.returncode = 0  # not ours to wait for any more
        return process.pid

    @property
    def pid(self) -> int | None:
        """Leader of its process group; None before `launch` and after `stop`."""
        return self._process.pid if self._process else None

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def tail(self, lines: int = 30) -> str:
        """The end of its log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def generate(self, **request) -> dict | list:
        """POST /generate; raises requests.HTTPError with the server's own words on an error answer."""
        answer = requests.post(self.url + "/generate", json=request, timeout=600)
        if not answer.ok:
            raise requests.HTTPError(f"status {answer.status_code}: {answer.text[:300]}", response=answer)
        return answer.json()

    def info(self) -> dict:
        """GET /server_info."""
        return requests.get(self.url + "/server_info", timeout=60).json()

    def __enter__(self) -> "Server":
        return self.start()

    def __exit__(self, *exc) -> None:
        self.stop()


def stop_all(servers: Sequence[Server]) -> None:
    """End the process groups of `servers` side by side, politely first. Ctrl-C does not cut this short."""
    running = [server._process for server in servers if server._process is not None]
    with _unhurried():
        for sig, patience in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
            for process in running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, sig)
            deadline = time.monotonic() + patience
            for process in running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0, deadline - time.monotonic()))
        deadline = time.monotonic() + 5
        while _living({process.pid for process in running}) and time.monotonic() < deadline:
            time.sleep(0.05)  # killed, but the kernel is still at it
        for server in servers:
            server._process = None


def _living(groups: set[int]) -> list[int]:
    """Processes of these process groups that have not ended."""
    living = []
    for process in psutil.process_iter() if groups else ():
        with contextlib.suppress(ProcessLookupError, psutil.Error):
            if os.getpgid(process.pid) in groups and process.status() != psutil.STATUS_ZOMBIE:
                living.append(process.pid)
    return living


@contextlib.contextmanager
def _unhurried() -> Iterator[None]:
    """Hold SIGINT and SIGTERM back until the end: half-way they would leave processes behind.

    Python handlers and not a signal mask, because a child would inherit the mask.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    before = {
        sig: signal.signal(sig, lambda number, frame: held.append(number))
        for sig in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for sig, handler in before.items():
            signal.signal(sig, handler or signal.SIG_DFL)
        if held:
            signal.raise_signal(held[0])


@contextlib.contextmanager
def stopping(*servers: Server) -> Iterator[None]:
    """Stop all of `servers` on the way out, whatever happened."""
    try:
        yield
    finally:
        stop_all(servers)
