"""Who starts what when, with users that are greenlets of the test. Nothing of Locust is imported here."""

import time

import gevent
import pytest

from jetspec_sglang.loadtest.dispatch import RESERVE, Arrival, ClosedLoop, OpenLoop


class Crowd:
    """Users whose answers take `service` seconds; notes `(arrival, seconds since zero)`."""

    def __init__(self, service: float) -> None:
        self.service, self.zero = service, time.monotonic() + 0.02
        self.started: list[tuple[Arrival, float]] = []
        self.users: list[gevent.Greenlet] = []

    def grow(self, users: int) -> None:
        self.users += [gevent.spawn(self._visit) for _ in range(users)]

    def _visit(self) -> None:
        newcomer = True
        while True:
            arrival = self.loop.take(newcomer)
            newcomer = False
            self.started.append((arrival, time.monotonic() - self.zero))
            gevent.sleep(self.service)
            self.loop.finished(arrival)

    def play(self, loop) -> None:
        self.loop = loop
        walker = gevent.spawn(loop.run)
        assert loop.done.wait(10)
        gevent.killall([walker, *self.users])


def test_arrivals_start_in_time_whatever_answers_take():
    times = [0.01 * n for n in range(40)]
    crowd = Crowd(service=0.3)
    crowd.play(OpenLoop(list(enumerate(times)), crowd.zero, crowd.grow))
    assert [arrival for arrival, _ in crowd.started] == [Arrival(n, due) for n, due in enumerate(times)]
    late = [at - arrival.due for arrival, at in crowd.started]
    assert min(late) >= -1e-4
    assert sorted(late)[len(late) // 2] < 0.02  # the test's machine may be busy at times
    assert len(crowd.users) <= 40 + RESERVE


def test_the_pool_is_enlarged_by_what_is_missing():
    """A user whose answer has come takes the next arrival; only those in flight need one each."""
    times = [0.05 * n for n in range(30)]
    crowd = Crowd(service=0.01)
    crowd.play(OpenLoop(list(enumerate(times)), crowd.zero, crowd.grow))
    assert len(crowd.started) == 30
    assert len(crowd.users) <= 20 + 2 * RESERVE  # 20 arrive within the second looked ahead


@pytest.mark.parametrize("size", [1, 50])
def test_bursts_find_their_users_waiting(size):
    crowd = Crowd(service=0.05)
    crowd.play(OpenLoop([(n, 0.1) for n in range(size)], crowd.zero, crowd.grow))
    assert len(crowd.started) == size


def test_nothing_to_do_is_done_at_once():
    loop = OpenLoop([], time.monotonic(), lambda users: None)
    loop.run()
    assert loop.done.is_set()


def test_closed_loop_numbers_and_ends():
    """Three users of worker 1 of 2; none starts after the end, and it is over when the last answer is."""
    crowd = Crowd(service=0.05)
    crowd.grow(3)
    crowd.play(ClosedLoop(crowd.zero, 0.2, worker=1, workers=2))
    numbers = [arrival.number for arrival, _ in crowd.started]
    assert numbers == [1 + 2 * n for n in range(len(numbers))]
    assert len(numbers) >= 3
    assert all(0 <= arrival.due < 0.2 for arrival, _ in crowd.started)
    assert time.monotonic() >= crowd.zero + 0.2
