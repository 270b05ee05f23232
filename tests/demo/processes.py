"""Fake servers that a command under test has started."""

import time
from pathlib import Path

import psutil
from patience import PATIENCE


def server_pids(folder: Path) -> list[int]:
    file = folder / "pids"
    return [int(pid) for pid in file.read_text().split()] if file.exists() else []


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for_servers(folder: Path, count: int = 4) -> list[int]:
    deadline = time.monotonic() + PATIENCE
    while len(server_pids(folder)) < count:
        assert time.monotonic() < deadline, "the fake servers did not start"
        time.sleep(0.05)
    return server_pids(folder)
