"""Who starts the next request, and when. Runs inside Locust, on gevent.

Open loop: one greenlet walks along the schedule and hands each arrival, at its time, to a pool of users that wait
for one. It never waits for an answer: where all users are busy, the pool has been enlarged before the arrival is
due. Closed loop: a user that has its answer takes the next arrival at once, so their number is the concurrency.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import gevent
from gevent.event import Event
from gevent.queue import Queue

AHEAD = 1.0  # seconds of coming arrivals for which users must be waiting
RESERVE = 4  # users that wait beyond those


@dataclass(frozen=True)
class Arrival:
    """Number in the run's schedule, and when it is due, in seconds since the run's zero."""

    number: int
    due: float


class OpenLoop:
    """Arrivals of this worker at their times.

    Args:
        arrivals: `(number, seconds since zero)`, sorted.
        zero: the run's zero by `time.monotonic()`.
        grow: adds that many users to the pool; they call `take` soon.
    """

    def __init__(self, arrivals: list[tuple[int, float]], zero: float, grow: Callable[[int], None]) -> None:
        self.done = Event()
        self._arrivals = [Arrival(number, due) for number, due in arrivals]
        self._zero = zero
        self._grow = grow
        self._queue: Queue[Arrival] = Queue()
        self._waiting = (
            0  # users inside `take`, those included that have been handed an arrival and not woken
        )
        self._coming = 0  # users asked for that have not called `take` yet
        self._open = len(arrivals)

    def take(self, newcomer: bool) -> Arrival:
        """The next arrival, when it is due; blocks for ever after the last. `newcomer`: this user's first call."""
        if newcomer and self._coming:
            self._coming -= 1
        self._waiting += 1
        try:
            return self._queue.get()
        finally:
            self._waiting -= 1

    def finished(self, arrival: Arrival) -> None:
        self._open -= 1
        if not self._open:
            self.done.set()

    def run(self) -> None:
        """Walk along the schedule."""
        if not self._open:
            self.done.set()
        ahead = 0
        for index, arrival in enumerate(self._arrivals):
            while ahead < len(self._arrivals) and self._arrivals[ahead].due <= arrival.due + AHEAD:
                ahead += 1
            self._provide(ahead - index + RESERVE)
            gevent.sleep(max(0.0, self._zero + arrival.due - time.monotonic()))
            self._queue.put(arrival)

    def _provide(self, users: int) -> None:
        free = self._waiting - self._queue.qsize() + self._coming
        if users > free:
            self._coming += users - free
            self._grow(users - free)


class ClosedLoop:
    """Each user's next arrival is due when the user is free, until `end` seconds since zero."""

    def __init__(self, zero: float, end: float, worker: int, workers: int) -> None:
        self.done = Event()
        self._zero, self._end = zero, end
        self._next, self._step = worker, workers
        self._open = 0

    def take(self, newcomer: bool) -> Arrival:
        """The next arrival at once, but not before zero; blocks for ever after the end."""
        gevent.sleep(max(0.0, self._zero - time.monotonic()))
        now = time.monotonic() - self._zero
        if now >= self._end:
            Event().wait()
        arrival = Arrival(self._next, now)
        self._next += self._step
        self._open += 1
        return arrival

    def finished(self, arrival: Arrival) -> None:
        self._open -= 1

    def run(self) -> None:
        """Wait for the end and for the answers that are still coming."""
        gevent.sleep(max(0.0, self._zero + self._end - time.monotonic()))
        while self._open:
            gevent.sleep(0.05)
        self.done.set()


class Pulse:
    """How late this process's own timers fire, from zero on: a generator without time to spare measures itself."""

    PERIOD = 0.02

    def __init__(self, zero: float) -> None:
        self.late: list[float] = []
        self._zero = zero

    def run(self) -> None:
        gevent.sleep(max(0.0, self._zero - time.monotonic()))
        while True:
            due = time.monotonic() + self.PERIOD
            gevent.sleep(self.PERIOD)
            self.late.append(time.monotonic() - due)
