"""A run, with its records."""

from pathlib import Path

from jetspec_sglang.loadtest.config import LoadConfig
from jetspec_sglang.loadtest.records import Request, Run, read_requests
from jetspec_sglang.loadtest.runner import run

TRIES = 3


def valid_run(config: LoadConfig, folder: Path, workers: int = 1) -> tuple[Run, list[Request]]:
    """A run that says of itself that it is valid. A busy machine makes the generator late: then once more."""
    for number in range(TRIES):
        done = run(config, folder / str(number), workers=workers)
        if done.valid:
            return done, read_requests(folder / str(number))
    raise AssertionError(f"{TRIES} invalid runs, the last one: {done.reasons}")


def any_run(config: LoadConfig, folder: Path, workers: int = 1) -> tuple[Run, list[Request]]:
    """For what does not depend on how busy the machine is."""
    return run(config, folder / "run", workers=workers), read_requests(folder / "run")
