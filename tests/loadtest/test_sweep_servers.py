"""Servers of a sweep that somebody else started, and what is said before any is."""

import pytest

from jetspec_sglang.loadtest.sweep import sweep
from jetspec_sglang.loadtest.sweep_config import SweepConfig
from jetspec_sglang.loadtest.sweep_servers import Fleet, RunningServer, SweepError
from jetspec_sglang.loadtest.workloads import WorkloadError


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


def test_prompts_that_cannot_be_read_are_said_before_a_server_starts(tmp_path):
    config = SweepConfig.model_validate(
        {
            "title": "t",
            "baseline": "a",
            "servers": {"a": {"args": []}},
            "rates": [1],
            "run": {"workload": str(tmp_path / "no.jsonl")},
        }
    )
    with pytest.raises(WorkloadError, match=r"no\.jsonl"):
        sweep(config, tmp_path / "study", NoLauncher(), {}, None)
    assert not (tmp_path / "study").exists()
