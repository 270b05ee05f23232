"""Locust's user: it takes the next arrival, plays it, and comes back for another."""

import gevent
from locust import User, task

from .generator import Generator


class LoadUser(User):
    """Asks by whatever API the run is about. When to start is the generator's business, not this user's."""

    generator: Generator | None = None  # of this process; set when a test starts

    def on_start(self) -> None:
        self.newcomer = True

    @task
    def play(self) -> None:
        if self.generator is None:  # the run could not be prepared and is about to be stopped
            gevent.sleep(0.1)
            return
        newcomer, self.newcomer = self.newcomer, False
        self.generator.play(self.generator.loop.take(newcomer))
