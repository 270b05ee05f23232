"""Where a run is tied to Locust: its options, and what happens when a test starts and stops.

Locust runs alone, or as a master with workers. The one that is alone does both jobs: the master's, which is to
prepare the server, fix the schedule and the zero, and collect; and the worker's, which is to generate.
"""

import json
import logging
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import gevent
from locust import events
from locust.argument_parser import LocustArgumentParser
from locust.runners import LocalRunner, MasterRunner, WorkerRunner
from pydantic import ValidationError

from .answers import AnswerError
from .apis import frontend
from .arrivals import ScheduleError, schedule
from .collector import Collector
from .config import LoadConfig, option
from .generator import REPORT, Generator
from .records import RecordError
from .runner import PARENT
from .users import LoadUser
from .workloads import WorkloadError, load_workload

LEAD_S = 1.0  # from preparation to the run's zero, for users to be there
WORKER_LEAD_S = 3.0
PROGRAM_LEAD_S = 90.0  # workers import sglang first

logger = logging.getLogger(__name__)


@events.init_command_line_parser.add_listener
def add_options(parser: LocustArgumentParser) -> None:
    """One option a field of the configuration; the web page shows them, too. `--host` is the server's URL."""
    for name, about in LoadConfig.model_fields.items():
        if name == "url":
            continue
        choices = [str(choice) for choice in get_args(about.annotation) if isinstance(choice, str)]
        default = "" if about.default is None else str(about.default)
        if about.annotation is bool:
            choices, default = ["true", "false"], default.lower()
        parser.add_argument(
            option(name), default=default, choices=choices or None, help=f"{about.description} [{default}]"
        )
    parser.add_argument("--folder", default="", help="folder of the raw files [loadtest-runs/TIME]")


@events.init.add_listener
def connect(environment: Any, runner: Any, **_: Any) -> None:
    if isinstance(runner, WorkerRunner):
        return
    runner.register_message(REPORT, _receive)
    if os.environ.get(PARENT):
        gevent.spawn(_leave_with_parent, runner, int(os.environ[PARENT]))


@events.test_start.add_listener
def start(environment: Any, **_: Any) -> None:
    """Prepare and generate, whichever is this process's part. A run that can't be is stopped, with the reason."""
    LoadUser.generator = None
    runner = environment.runner
    try:
        if isinstance(runner, MasterRunner | LocalRunner):
            _prepare(environment)
        if isinstance(runner, WorkerRunner | LocalRunner):
            _generate(environment)
    except (ValidationError, ScheduleError, WorkloadError, AnswerError, RecordError) as error:
        logger.error("This run can't start: %s", error)
        environment.process_exit_code = 2
        gevent.spawn_later(0.1, _end, environment)


@events.test_stop.add_listener
def stop(environment: Any, **_: Any) -> None:
    if LoadUser.generator is not None:
        LoadUser.generator.stop()
        LoadUser.generator = None
    collector: Collector | None = environment.__dict__.pop("load_collector", None)
    if collector is not None:
        run = collector.close()
        logger.info(
            "Raw files are in %s; the run is %s.", collector.folder, "valid" if run.valid else "INVALID"
        )
        for reason in run.reasons:
            logger.warning("%s", reason)


def _prepare(environment: Any) -> None:
    """Whatever workers must agree on goes into the parsed options, which Locust sends to them."""
    options = environment.parsed_options
    config = LoadConfig.of_options({**vars(options), "url": environment.host or ""})
    load_workload(config)
    times = schedule(config) if config.open_loop else None
    slots = [""]
    if isinstance(environment.runner, MasterRunner):
        slots = [client.id for client in environment.runner.clients.ready]
    folder = Path(options.folder or f"loadtest-runs/{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
    collector = Collector(config, folder, times, len(slots))
    environment.__dict__["load_collector"] = collector
    if slots == [""] and config.api == "program":
        frontend(config.url, config.template)
    lead = LEAD_S if slots == [""] else PROGRAM_LEAD_S if config.api == "program" else WORKER_LEAD_S
    options.load_run = json.dumps(
        {
            "config": config.model_dump(mode="json"),
            "schedule": times,
            "slots": slots,
            "zero": collector.begin(lead),
        }
    )


def _generate(environment: Any) -> None:
    run = json.loads(environment.parsed_options.load_run)
    zero = time.monotonic() + run["zero"] - time.time()
    runner = environment.runner
    slot = run["slots"].index(runner.client_id if isinstance(runner, WorkerRunner) else "")
    config = LoadConfig(**run["config"])
    LoadUser.generator = Generator(environment, config, run["schedule"], zero, slot, len(run["slots"]))


def _receive(environment: Any, msg: Any, **_: Any) -> None:
    collector: Collector | None = environment.__dict__.get("load_collector")
    if collector is not None:
        collector.receive(msg.data, lambda: gevent.spawn(_end, environment))


def _leave_with_parent(runner: Any, parent: int) -> None:
    """A killed parent can't stop this run, which would load the server while somebody measures it."""
    while os.getppid() == parent:
        gevent.sleep(1)
    runner.quit()


def _end(environment: Any) -> None:
    """Without the web page the program ends with its run."""
    if environment.parsed_options.headless:
        environment.runner.quit()
    else:
        environment.runner.stop()
