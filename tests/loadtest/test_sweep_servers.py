"""Servers of a sweep that somebody else started."""

import pytest

from jetspec_sglang.loadtest.sweep_servers import Fleet, RunningServer, SweepError


class NoLauncher:
    names: dict[str, str] = {}  # noqa: RUF012

    def make(self, flags):
        raise AssertionError

    def stop(self, servers):
        assert not servers


def test_a_server_that_nobody_started_is_said_at_once(tmp_path):
    fleet = Fleet({"a": lambda: RunningServer("http://127.0.0.1:9")}, NoLauncher(), tmp_path)
    with pytest.raises(
        SweepError, match=r"The server a can't be used: nothing answers at http://127\.0\.0\.1:9"
    ):
        fleet.start(["a"])
    fleet.stop()
