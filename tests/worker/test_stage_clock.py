"""Stage times: at once on the host; on a device only when its events are through, and without a wait."""

import torch

from jetspec_sglang.stage_clock import DeviceClock, HostClock


def test_host_rounds_are_finished_when_they_end():
    clock = HostClock()
    with clock.stage("draft"):
        pass
    with clock.stage("verify"):
        pass
    clock.end_round("first", (torch.ones(1),))
    with clock.stage("verify"):
        pass
    clock.end_round("second")
    clock.interrupted()
    with clock.stage("verify"):
        pass
    clock.end_round("third")
    first, second, third = clock.finished()
    assert (first.note, second.note, third.note) == ("first", "second", "third")
    assert set(first.seconds) == {"draft", "verify"}
    assert all(s >= 0 for s in first.seconds.values())
    assert first.gap is None
    assert second.gap >= 0
    assert third.gap is None
    assert list(clock.finished()) == []


def test_a_stage_in_two_parts_is_their_sum():
    clock = HostClock()
    for _ in range(2):
        with clock.stage("build"):
            sum(range(1000))
    clock.end_round(None)
    (finished,) = clock.finished()
    assert list(finished.seconds) == ["build"]
    assert finished.seconds["build"] > 0


class Device:
    """A device of which the test decides how far it has come. Times in ms, one more an event."""

    def __init__(self) -> None:
        self.recorded = 0
        self.done = 0

    def event(self):
        device = self

        class Event:
            def record(self) -> None:
                device.recorded += 1
                self.time = device.recorded

            def query(self) -> bool:
                return device.done >= self.time

            def elapsed_time(self, other) -> float:
                return float(other.time - self.time)

        return Event()


def test_device_rounds_come_in_order_when_the_device_has_done_them():
    device = Device()
    clock = DeviceClock(device.event)
    for note in ("first", "second"):
        with clock.stage("draft"):
            pass
        with clock.stage("verify"):
            pass
        clock.end_round(note)
    assert list(clock.finished()) == []  # nothing is through, and nobody waits
    device.done = 5  # all five marks of the first round
    (first,) = clock.finished()
    assert first.note == "first"
    assert first.gap is None
    assert first.seconds == {"draft": 0.001, "verify": 0.001}
    device.done = device.recorded
    (second,) = clock.finished()
    assert second.note == "second"
    assert second.gap == 0.001
