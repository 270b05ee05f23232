"""The config file of a sweep: servers, loads, repetitions, and what every run has in common."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from .config import LoadConfig
from .sweep_plan import Cell, Load, ordered
from .sweep_servers import SweepError

# Fields of a run that the sweep gives itself, cell by cell.
GIVEN = {"url", "method", "cell", "server_flags", "rate", "rate_to", "concurrency", "seed"}

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")]  # also a folder and a key of the report


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ServerConfig(Strict):
    """A server to launch with `args` of ``python -m sglang.launch_server``, or one that runs at `url`."""

    label: str = ""  # in the report; the name if empty
    args: tuple[str, ...] | None = None
    url: str | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> ServerConfig:
        if (self.args is None) == (self.url is None):
            raise ValueError("give either args, to launch it, or url, where it runs")
        return self


class SweepConfig(Strict):
    """A study: each server under each load, `repetitions` times.

    `common_args` come before each launched server's own. `baseline` names the server that speed-ups are relative
    to. `run` holds the fields of `LoadConfig` that all cells share; arrivals there are those of the rates.
    `notes` are printed on the report's front.
    """

    title: str
    notes: tuple[str, ...] = ()
    servers: dict[Name, ServerConfig] = Field(min_length=1)
    common_args: tuple[str, ...] = ()
    baseline: str
    one_at_a_time: bool = False
    rates: tuple[PositiveFloat, ...] = ()
    concurrencies: tuple[PositiveInt, ...] = ()
    repetitions: PositiveInt = 1
    seed: int = 0
    run: dict[str, Any] = {}

    @model_validator(mode="after")
    def _fits_together(self) -> SweepConfig:
        if not self.loads:
            raise ValueError("give rates or concurrencies, at least one")
        if len(set(self.loads)) < len(self.loads):
            raise ValueError("a rate or a concurrency is there twice; repetitions repeat all of them")
        if self.baseline not in self.servers:
            raise ValueError(f"baseline is {self.baseline!r}; name one of {', '.join(self.servers)}")
        if given := sorted(GIVEN & set(self.run)):
            raise ValueError(f"run has {given[0]!r}, which the sweep gives itself")
        for load in self.loads:
            self.run_of(Cell(self.baseline, load, 1), "http://127.0.0.1:1")
        return self

    @property
    def loads(self) -> list[Load]:
        return [
            *(Load("rate", value) for value in self.rates),
            *(Load("concurrency", value) for value in self.concurrencies),
        ]

    def cells(self) -> list[Cell]:
        return ordered(list(self.servers), self.loads, self.repetitions, one_at_a_time=self.one_at_a_time)

    def flags(self, server: str) -> list[str]:
        """Launch arguments of a server, none of one that runs already."""
        args = self.servers[server].args
        return [] if args is None else [*self.common_args, *args]

    def run_of(self, cell: Cell, url: str) -> LoadConfig:
        """The run of one cell. Its seed depends on the repetition alone: all servers get the same arrivals and
        prompts, so that they can be compared pair by pair."""
        if cell.load.kind == "rate":
            load: dict[str, Any] = {"rate": cell.load.value}
        else:
            load = {"arrivals": "closed", "concurrency": int(cell.load.value)}
        return LoadConfig(
            url=url,
            method=cell.server,
            cell=cell.name,
            server_flags=" ".join(self.flags(cell.server)),
            seed=self.seed + cell.repetition - 1,
            **{**self.run, **load},
        )

    def seconds(self) -> float:
        """What all cells take together at least, without starting servers and draining."""
        run = self.run_of(self.cells()[0], "http://127.0.0.1:1")
        return len(self.cells()) * run.end_s

    def same_measurement(self, other: SweepConfig) -> bool:
        """Could a cell of `other` stand in this study? More or fewer servers, loads or repetitions don't matter,
        nor do words."""
        free = {"title", "notes", "servers", "baseline", "rates", "concurrencies", "repetitions"}
        shared = set(self.servers) & set(other.servers)
        return self.model_dump(exclude=free) == other.model_dump(exclude=free) and all(
            self.servers[name].args == other.servers[name].args
            and self.servers[name].url == other.servers[name].url
            for name in shared
        )


def read_config(file: Path) -> SweepConfig:
    """From YAML or, by its ending, TOML.

    Raises:
        SweepError: no such file, or what is wrong in it, each in one line.
    """
    try:
        text = file.read_text(encoding="utf-8")
        return SweepConfig.model_validate(
            tomllib.loads(text) if file.suffix == ".toml" else yaml.safe_load(text)
        )
    except OSError as error:
        raise SweepError(f"{file} can't be read ({error.strerror}).") from error
    except (yaml.YAMLError, tomllib.TOMLDecodeError) as error:
        raise SweepError(f"{file} is no {'TOML' if file.suffix == '.toml' else 'YAML'}: {error}") from error
    except ValidationError as error:
        lines = [
            f"{'.'.join(map(str, problem['loc'])) or 'config'}: {problem['msg'].removeprefix('Value error, ')}"
            for problem in error.errors()
        ]
        raise SweepError(f"{file}: {'; '.join(lines)}") from error
