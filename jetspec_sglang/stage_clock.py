"""How long the stages of a round take, without making the host wait for the device.

On the CPU a stage ends when its code does. An accelerator runs behind the host: events mark its stages, and
they, like the tensors that a round leaves for the host, are read in a later round, once they are through.
"""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

STAGES = ("draft", "build", "verify", "accept", "commit")


@dataclass(frozen=True)
class FinishedRound:
    """seconds: by stage. gap: seconds since the round before ended, None if it was not the step before.
    note: what the caller left with the round. tensors: on the host."""

    seconds: dict[str, float]
    gap: float | None
    note: Any
    tensors: tuple[torch.Tensor, ...]


class HostClock:
    """For the CPU: a round is finished when it ends."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._began: float | None = None
        self._ended: float | None = None
        self._finished: list[FinishedRound] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        if self._began is None:
            self._began = began
        yield
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - began

    def end_round(self, note: Any, tensors: tuple[torch.Tensor, ...] = ()) -> None:
        gap = None if self._ended is None or self._began is None else self._began - self._ended
        self._finished.append(FinishedRound(self._seconds, gap, note, tensors))
        self._seconds, self._began, self._ended = {}, None, time.perf_counter()

    def interrupted(self) -> None:
        """Something else than a round comes now: the next gap is not one between rounds."""
        self._ended = None

    def finished(self) -> Iterator[FinishedRound]:
        """Rounds that nobody has been given yet, oldest first."""
        rounds, self._finished = self._finished, []
        yield from rounds


@dataclass(frozen=True)
class _Running:
    """A round that the device may still be busy with: stages as (name, first event, last event), and the event
    behind all of it."""

    stages: list[tuple[str, Any, Any]]
    before: Any
    note: Any
    tensors: tuple[torch.Tensor, ...]
    end: Any


class DeviceClock:
    """For an accelerator of `torch.cuda`'s kind: events and pinned copies, never a wait."""

    def __init__(self, event_type: Any = None) -> None:
        self._event_type = event_type or (lambda: torch.cuda.Event(enable_timing=True))
        self._stages: list[tuple[str, Any, Any]] = []
        self._pending: deque[_Running] = deque()
        self._last_end: Any = None

    def _mark(self) -> Any:
        event = self._event_type()
        event.record()
        return event

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        began = self._mark()
        yield
        self._stages.append((name, began, self._mark()))

    def end_round(self, note: Any, tensors: tuple[torch.Tensor, ...] = ()) -> None:
        host = tuple(self._to_host(tensor) for tensor in tensors)
        end = self._mark()  # behind the copies, so a round that is through has them
        self._pending.append(_Running(self._stages, self._last_end, note, host, end))
        self._last_end, self._stages = end, []

    @staticmethod
    def _to_host(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type == "cpu":
            return tensor
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return copy.copy_(tensor, non_blocking=True)

    def interrupted(self) -> None:
        self._last_end = None

    def finished(self) -> Iterator[FinishedRound]:
        while self._pending and self._pending[0].end.query():
            done = self._pending.popleft()
            seconds: dict[str, float] = {}
            for name, began, ended in done.stages:
                seconds[name] = seconds.get(name, 0.0) + began.elapsed_time(ended) / 1000
            gap = None
            if done.before is not None and done.stages:
                gap = done.before.elapsed_time(done.stages[0][1]) / 1000
            yield FinishedRound(seconds, gap, done.note, done.tensors)


def stage_clock(device: str) -> HostClock | DeviceClock:
    """The clock for torch device type `device`."""
    return HostClock() if torch.device(device).type == "cpu" else DeviceClock()
