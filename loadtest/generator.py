"""One process's part of a run: it plays its arrivals and reports what happened. Runs inside Locust, on gevent."""

import logging
import time
from typing import Any

import gevent
from gevent.pool import Group
from locust.env import Environment

from .answers import Answer, AnswerError
from .apis import APIS, frontend
from .arrivals import share
from .config import LoadConfig
from .dispatch import Arrival, ClosedLoop, OpenLoop, Pulse
from .records import Request, to_line
from .validity import lateness
from .workloads import ASSISTANT, USER, Conversation, load_workload

REPORT = "load_report"  # name of the message to whoever collects
REPORT_PERIOD = 0.5

logger = logging.getLogger(__name__)


class Generator:
    """Worker `worker` of `workers`.

    Args:
        environment: Locust's; its runner carries the reports.
        schedule: every arrival of the run, all workers' together; None for a closed loop.
        zero: the run's zero by `time.monotonic()`.
    """

    def __init__(
        self,
        environment: Environment,
        config: LoadConfig,
        schedule: list[float] | None,
        zero: float,
        worker: int,
        workers: int,
    ) -> None:
        self.environment, self.config, self.zero = environment, config, zero
        self.runner: Any = environment.runner
        self.workload = load_workload(config)
        self.api = APIS[config.api](config)
        self._rows: list[str] = []
        self._crowd = Group()
        self._pulse = Pulse(zero)
        self._worker = worker
        self.loop: OpenLoop | ClosedLoop
        if schedule is None:
            self.loop = ClosedLoop(zero, config.end_s, worker, workers)
        else:
            self.loop = OpenLoop(share(schedule, worker, workers), zero, self._grow)
        if config.api == "program":
            frontend(config.url, config.template)
        self._greenlets = [gevent.spawn(run) for run in (self.loop.run, self._pulse.run, self._report)]

    def play(self, arrival: Arrival) -> None:
        """One conversation, turn after turn; a turn that fails ends it. Every turn that began leaves a record."""
        number, conversation = self.workload.at(arrival.number)
        messages: list[tuple[str, str]] = []
        due = arrival.due
        try:
            for turn, text in enumerate(conversation.turns):
                messages.append((USER, text))
                request, said = self._turn(arrival, due, number, conversation, turn, messages)
                if not request.ok:
                    break
                messages.append((ASSISTANT, said))
                due = request.end_s
        finally:
            self.loop.finished(arrival)

    def _flush(self, *, last: bool) -> None:
        """Report all new records; the last report tells how late the timers were, too."""
        rows, self._rows = self._rows, []
        message = {
            "rows": rows,
            "done": self.loop.done.is_set(),
            "worker": self._worker,
            "loop": lateness(self._pulse.late) if last else None,
        }
        self.runner.send_message(REPORT, message)

    def stop(self) -> None:
        """After Locust has ended its users."""
        self._crowd.kill()
        gevent.killall(self._greenlets)
        self._flush(last=True)

    def _now(self) -> float:
        return round(time.monotonic() - self.zero, 6)

    def _turn(
        self,
        arrival: Arrival,
        due: float,
        number: int,
        conversation: Conversation,
        turn: int,
        messages: list[tuple[str, str]],
    ) -> tuple[Request, str]:
        answer = Answer()
        start, error, status = self._now(), None, None
        try:
            self.api.ask(messages, answer)
            answer.check()
        except AnswerError as failure:
            error, status = str(failure) or "no reason given", failure.status
        except (KeyError, TypeError, AttributeError) as failure:
            error = f"the stream is not understood ({failure!r})"
        except gevent.GreenletExit:
            error = "the run was stopped"
            raise
        finally:
            request = Request(
                id=f"{arrival.number}.{turn}",
                cell=self.config.cell,
                method=self.config.method,
                phase="warmup" if arrival.due < self.config.warmup_s else "measure",
                api=self.config.api,
                scheduled_s=round(due, 6),
                start_s=start,
                end_s=self._now(),
                domain=conversation.domain,
                prompt=number,
                turn=turn,
                max_tokens=self.config.max_tokens,
                status=status or answer.status,
                error=error,
                **self._told(answer),
            )
            self._rows.append(to_line(request))
            self._tell_locust(request)
        return request, answer.text

    def _told(self, answer: Answer) -> dict[str, Any]:
        chunks = [[round(time - self.zero, 6), tokens] for time, tokens in answer.chunks]
        names = "prompt_tokens completion_tokens cached_tokens rounds accepted_drafts nodes histogram"
        return {
            "chunks": chunks,
            "first_token_s": chunks[0][0] if chunks else None,
            **{name: getattr(answer, name) for name in names.split()},
        }

    def _tell_locust(self, request: Request) -> None:
        """For Locust's own table and web page; response time is from due to end."""
        self.environment.events.request.fire(
            request_type=request.api,
            name=request.domain,
            response_time=1000 * (request.end_s - request.scheduled_s),
            response_length=request.completion_tokens or 0,
            exception=None if request.ok else AnswerError(request.error or "", request.status),
            context={},
        )

    def _grow(self, users: int) -> None:
        """More users of Locust's own class, but not in its count: it would stop what it has not ordered."""
        for _ in range(users):
            self.environment.user_classes[0](self.environment).start(self._crowd)

    def _report(self) -> None:
        while not self.loop.done.wait(REPORT_PERIOD):
            self._flush(last=False)
        self._flush(last=True)
