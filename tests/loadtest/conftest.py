"""Fake servers, each in a process of its own."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

FAKE = Path(__file__).with_name("fake_llm.py")


@pytest.fixture(scope="module")
def start_fake_llm() -> Iterator[Callable[..., str]]:
    """Starts one with options of `fake_llm.py` and returns its URL; all end with the module."""
    servers = []

    def start(**options) -> str:
        words = []
        for name, value in options.items():
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
        server = subprocess.Popen([sys.executable, str(FAKE), *words], stdout=subprocess.PIPE, text=True)
        servers.append(server)
        return f"http://127.0.0.1:{int(server.stdout.readline())}"

    yield start
    for server in servers:
        server.kill()
        server.wait()
        server.stdout.close()
