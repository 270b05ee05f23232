"""An SGLang server as a child process: start it, wait until it answers, ask it, stop it with all its children."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import requests

HOST = "127.0.0.1"


class ServerError(RuntimeError):
    """The server didn't start; the message ends with the last lines of its log."""


def free_port() -> int:
    """A TCP port on loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


class Server:
    """`python -m sglang.launch_server ARGS` in a process group of its own.

    Use as a context manager, or `start()` and `stop()`. `log` is the file that holds its output.
    """

    def __init__(self, args: Sequence[str], *, env: dict[str, str] | None = None, port: int | None = None) -> None:
        self.port = port or free_port()
        self.url = f"http://{HOST}:{self.port}"
        self.args = [*args, "--host", HOST, "--port", str(self.port)]
        self.env = {**os.environ, **(env or {})}
        self.log = Path(tempfile.mkstemp(prefix="jetspec-server-", suffix=".log")[1])
        self._process: subprocess.Popen | None = None

    def start(self, timeout: float = 300, waiting: Callable[[float], None] = lambda seconds: None) -> "Server":
        """Start and wait until it generates. `waiting(seconds so far)` is called about twice a second.

        Raises ServerError if the process ends or `timeout` (seconds) passes first.
        """
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sglang.launch_server", *self.args],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.env,
                start_new_session=True,
            )
        began = time.monotonic()
        try:
            while not self._healthy():
                if self._process.poll() is not None:
                    raise ServerError(f"The server ended with status {self._process.returncode}.\n{self.tail()}")
                elapsed = time.monotonic() - began
                if elapsed > timeout:
                    raise ServerError(f"The server did not answer within {timeout:.0f} s.\n{self.tail()}")
                waiting(elapsed)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(0.5)
        except BaseException:
            self.stop()
            raise
        return self

    def _healthy(self) -> bool:
        try:
            return requests.get(self.url + "/health_generate", timeout=20).status_code == 200
        except requests.RequestException:
            return False

    def stop(self) -> None:
        """End the whole process group, politely first."""
        if self._process is None:
            return
        for sig, patience in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, sig)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(patience)
        self._process = None

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def tail(self, lines: int = 30) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def generate(self, **request) -> dict | list:
        """POST /generate; raises requests.HTTPError on an error answer."""
        answer = requests.post(self.url + "/generate", json=request, timeout=600)
        answer.raise_for_status()
        return answer.json()

    def info(self) -> dict:
        """GET /server_info."""
        return requests.get(self.url + "/server_info", timeout=60).json()

    def __enter__(self) -> "Server":
        return self.start()

    def __exit__(self, *exc) -> None:
        self.stop()


@contextlib.contextmanager
def stopping(*servers: Server) -> Iterator[None]:
    """Stop all of `servers` on the way out, whatever happened."""
    try:
        yield
    finally:
        for server in servers:
            server.stop()
