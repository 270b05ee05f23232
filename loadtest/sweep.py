"""Measure a whole study: servers up, cell after cell, everything stopped at the end.

The folder holds ``study.json``, written first, and a folder for each finished cell. A cell is measured into a
folder of its own beside them, which gets its final name when all is in it; so what has a final name is finished,
and a sweep that was stopped anywhere goes on where it was.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from .records import RUN
from .report_summary import FORMAT, STUDY, cell_folder
from .runner import Progress, RunError, run
from .sweep_config import SweepConfig
from .sweep_plan import Cell
from .sweep_servers import Fleet, Launcher, RunningServer, Server, SweepError, end_leftovers
from .workloads import load_workload

TRIES = 3  # of a cell whose server ends
INVALID_TRIES = 2  # of a cell in which the generator was late
HALF = "half"  # folder of cells that are being measured


class Watch(Protocol):
    """What a sweep tells meanwhile."""

    def starting(self, names: str, seconds: float) -> None: ...
    def cell(self, cell: Cell, number: int, total: int) -> None: ...
    def progress(self, progress: Progress) -> None: ...
    def event(self, text: str) -> None: ...


def sweep(
    config: SweepConfig, folder: Path, launcher: Launcher, machine: dict[str, Any], watch: Watch
) -> None:
    """Measure all cells of `config` that `folder` does not have yet.

    Args:
        machine: what the servers run on, for the report.

    Raises:
        SweepError: the folder is another study's or in use, or a server does not come up or ends again and again.
        ScheduleError, WorkloadError: a run can't be played.
    """
    cells = config.cells()
    load_workload(config.run_of(cells[0], "http://not-started-yet"))  # before minutes go into servers
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with only_one(folder):
        study = _Study(config, folder, machine)
        ended = end_leftovers(folder)
        shutil.rmtree(folder / HALF, ignore_errors=True)
        if ended:
            watch.event(f"ended {ended} processes that an earlier, killed sweep had left behind")
        todo = [cell for cell in cells if not cell_folder(folder, cell.name).exists()]
        fleet = Fleet(
            {name: _maker(config, name, launcher) for name in config.servers},
            launcher,
            folder,
            one_at_a_time=config.one_at_a_time,
            waiting=watch.starting,
        )
        try:
            fleet.start(name for name in config.servers if any(cell.server == name for cell in todo))
            for cell in todo:
                watch.cell(cell, cells.index(cell) + 1, len(cells))
                _measure(cell, config, fleet, study, launcher, watch)
        finally:
            fleet.stop()


class _Study:
    """``study.json``: the plan, and what went wrong while it was carried out."""

    def __init__(self, config: SweepConfig, folder: Path, machine: dict[str, Any]) -> None:
        self.folder = folder
        self._content: dict[str, Any] = {
            "format": FORMAT,
            "config": config.model_dump(mode="json"),
            "servers": {
                name: {"label": server.label or name, "flags": config.flags(name), "url": server.url}
                for name, server in config.servers.items()
            },
            "machine": machine,
            "cells": [
                {
                    "name": cell.name,
                    "server": cell.server,
                    "kind": cell.load.kind,
                    "load": float(cell.load.value),
                    "repetition": cell.repetition,
                }
                for cell in config.cells()
            ],
            "events": [],
        }
        file = folder / STUDY
        if file.exists():
            self._go_on(json.loads(file.read_text(encoding="utf-8")), config)
        self._write()

    def _go_on(self, before: dict[str, Any], config: SweepConfig) -> None:
        if not config.same_measurement(SweepConfig.model_validate(before["config"])):
            raise SweepError(
                f"{self.folder} holds a study with other servers or runs; give another --out, or the config it "
                "was begun with. Servers, loads and repetitions may be added."
            )
        if before["machine"] != self._content["machine"]:
            raise SweepError(
                f"{self.folder} was measured on another machine or with other versions ({before['machine']}); "
                "its cells can't be compared with new ones. Give another --out."
            )
        self._content["events"] = before["events"]

    def note(self, cell: Cell, what: str) -> None:
        self._content["events"].append({"server": cell.server, "cell": cell.name, "what": what})
        self._write()

    def _write(self) -> None:
        """At once, so that a killed sweep leaves the old one or the new one."""
        half = self.folder / (STUDY + ".half")
        half.write_text(json.dumps(self._content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        half.replace(self.folder / STUDY)


def _maker(config: SweepConfig, name: str, launcher: Launcher) -> Callable[[], Server]:
    url = config.servers[name].url
    return (lambda: launcher.make(config.flags(name))) if url is None else (lambda: RunningServer(url))


def _measure(
    cell: Cell, config: SweepConfig, fleet: Fleet, study: _Study, launcher: Launcher, watch: Watch
) -> None:
    """Measure until it is done on a server that lived through it, by a generator that was in time."""
    crashes = 0
    for turn in range(1, TRIES + INVALID_TRIES):
        # Locust of a sweep that was killed may still be at work, so no folder is used twice.
        half = study.folder / HALF / f"{os.getpid()}-{cell.name.replace('/', '-')}-{turn}"
        failure, done = "", None
        try:
            done = run(config.run_of(cell, fleet.get(cell.server).url), half, watch=watch.progress)
        except RunError as error:
            failure = str(error)
        if not fleet.answers(cell.server):
            fleet.drop(cell.server)
            crashes += 1
            _tell(study, watch, cell, "the server ended or stopped answering, so the cell is to be repeated")
            if crashes == TRIES:
                raise SweepError(f"The server {cell.server} ended {TRIES} times in {cell.name}.")
        elif done is None:
            raise SweepError(f"{cell.name} can't be measured: {failure}")
        elif done.valid or turn - crashes == INVALID_TRIES:
            _rename_folders(half / RUN, launcher.names)
            final = cell_folder(study.folder, cell.name)
            final.parent.mkdir(parents=True, exist_ok=True)
            half.rename(final)
            return
        else:
            _tell(study, watch, cell, f"not valid, repeated: {' '.join(done.reasons)}")
        shutil.rmtree(half, ignore_errors=True)


def _rename_folders(file: Path, names: Mapping[str, str]) -> None:
    """What a server says of itself names folders of this machine, which nobody else can use."""
    text = file.read_text(encoding="utf-8")
    for folder, name in names.items():
        text = text.replace(folder, name)
    file.write_text(text, encoding="utf-8")


def _tell(study: _Study, watch: Watch, cell: Cell, what: str) -> None:
    study.note(cell, what)
    watch.event(f"{cell.name}: {what}")


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Hold `folder` against a second sweep; the kernel lets go of it however this one ends.

    Raises:
        SweepError: another one holds it.
    """
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise SweepError(f"Another sweep is writing to {folder}.") from error
        yield
