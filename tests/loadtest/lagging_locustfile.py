"""The load test in a process that is too busy: half of the time it does something else."""

import time

import gevent
from locust import events

from jetspec_sglang.loadtest import hooks  # noqa: F401
from jetspec_sglang.loadtest.users import LoadUser

__all__ = ["LoadUser"]


def busy() -> None:
    while True:
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            pass
        gevent.sleep(0.3)


@events.test_start.add_listener
def distract(**_) -> None:
    gevent.spawn(busy)
