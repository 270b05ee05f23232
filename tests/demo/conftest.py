"""Commands as processes, on fake servers."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from processes import alive, server_pids
from typer.testing import CliRunner

DRIVER = Path(__file__).with_name("driver.py")


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts the driver with arguments and environment; afterwards no fake server may be alive."""
    monkeypatch.setenv("FAKE_PIDS", str(tmp_path / "pids"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # server logs

    def start(*args: object, **env: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, str(DRIVER), *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )

    yield start
    for pid in server_pids(tmp_path):
        if alive(pid):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def finished(start, tmp_path):
    """Runs the driver to its end → (status, stdout, stderr); no server is left, no log of one that ran well."""

    def finished(*args: object, **env: str) -> tuple[int, str, str]:
        process = start(*args, **env)
        out, err = process.communicate(timeout=60)
        assert not any(map(alive, server_pids(tmp_path)))
        if process.returncode == 0:
            assert not list(tmp_path.glob("jetspec-server-*.log"))
        return process.returncode, out, err

    return finished


@pytest.fixture
def refused(tmp_path, monkeypatch):
    """Runs a command in this process, in an empty folder → what it says, which is one line, and starts nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **how: pytest.fail("a server was started"))

    def refused(command, *args: object) -> str:
        app = typer.Typer(add_completion=False)
        app.command()(command)
        result = CliRunner().invoke(app, list(map(str, args)))
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.count("\n") == 1
        return result.stderr

    return refused
