"""Raw rows of `jetspec eval`, a row an answer, and the numbers that follow from them.

A file of raw rows begins with one line that says what was run: `{"run": {…}}`. Table, plots and JSON are made
from what the file holds, also while measuring, so they can always be made again (`jetspec eval --from`).
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import groupby
from math import isnan
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from .ceiling import ceiling
from .compare import CompareError, decode_cost, tau
from .eval_grid import PLAIN, Configuration
from .round_stats import STAGES

Row = TypeVar("Row")

ALL = "all"


@dataclass(frozen=True)
class Measurement:
    """One answer of one configuration, given beside the others of `block` (a head's label).

    decoded, decode_seconds: tokens behind those of the first message, and the time they took.
    drafts:    the most that a round could accept.
    identical: to the plain answer, token for token; None where sampled.
    stage_seconds, histogram: what the server's round counters grew by; empty for plain decoding.
    """

    configuration: Configuration
    block: str
    domain: str
    prompt: int
    turn: int
    repeat: int
    temperature: float
    completion_tokens: int
    decoded: int
    prefill_seconds: float
    decode_seconds: Annotated[float, Field(gt=0)]
    rounds: int
    accepted_drafts: int
    drafts: int
    identical: bool | None
    stage_seconds: dict[str, float]
    histogram: dict[str, int]

    def row(self) -> dict[str, Any]:
        row = asdict(self)
        return {**row.pop("configuration"), **row}

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> "Measurement":
        """Raises KeyError, TypeError or ValueError for another row."""
        names = [field.name for field in fields(Configuration)]
        own = [field.name for field in fields(cls) if field.name != "configuration"]
        values = {name: row[name] for name in own}
        configuration = {name: row[name] for name in names}
        return TypeAdapter(cls).validate_python({"configuration": configuration, **values})


def read_raw(file: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What was run, and the rows.

    Raises:
        CompareError: the file can't be read, or another program wrote it.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CompareError(f"{file} can't be read ({error}).") from error
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise CompareError(
                f"{file}, line {number} is no JSON ({error}); is the file cut short?"
            ) from error
    if not rows or not isinstance(rows[0], dict) or not isinstance(rows[0].get("run"), dict):
        raise CompareError(f"{file} holds no raw rows of jetspec eval (--jsonl).")
    return rows[0]["run"], rows[1:]


def parse_rows(
    file: Path, rows: Iterable[Mapping[str, Any]], parse: Callable[[Mapping[str, Any]], Row]
) -> list[Row]:
    """Raises CompareError for a row that `parse` can't use."""
    parsed = []
    for number, row in enumerate(rows, 2):
        try:
            parsed.append(parse(row))
        except ValidationError as error:
            where, problem = error.errors()[0]["loc"], error.errors()[0]["msg"]
            name = where[-1] if where else "row"
            raise CompareError(
                f"{file}, line {number} is no row of jetspec eval ({name}: {problem})."
            ) from error
        except (KeyError, TypeError) as error:
            raise CompareError(f"{file}, line {number} is no row of jetspec eval ({error}).") from error
    if not parsed:
        raise CompareError(f"{file} holds no answers.")
    return parsed


def summarise(measured: Sequence[Measurement]) -> list[dict[str, Any]]:
    """A row for each configuration and domain, and one over all domains.

    A prompt counts with its median repeat. Speed-ups compare with the plain answers of the same blocks.
    """
    rows = []
    for configuration in configurations(measured):
        mine = [m for m in measured if m.configuration == configuration]
        blocks = {m.block for m in mine}
        beside = [m for m in measured if m.configuration == PLAIN and m.block in blocks]
        for domain in (*dict.fromkeys(m.domain for m in measured), ALL):
            here, plain = ([m for m in side if domain in (m.domain, ALL)] for side in (mine, beside))
            if not here:
                continue
            cost = decode_cost(_repeats(here))
            rows.append(
                {
                    **asdict(configuration),
                    "temperature": here[0].temperature,
                    "domain": domain,
                    "tau": tau(here),
                    "tok_s": _number(1 / cost),
                    "speedup": _number(decode_cost(_repeats(plain)) / cost),
                    "rounds": sum(m.rounds for m in here),
                }
            )
    return rows


def configurations(measured: Iterable[Measurement]) -> list[Configuration]:
    """Plain decoding first, the others as they come: the first question is asked in the grid's order."""
    return list(dict.fromkeys([PLAIN, *(m.configuration for m in measured)]))


def stages(measured: Sequence[Measurement]) -> list[dict[str, Any]]:
    """Each stage's share of the time in rounds, by configuration; nothing of plain decoding."""
    rows = []
    for configuration in configurations(measured)[1:]:
        mine = [m.stage_seconds for m in measured if m.configuration == configuration]
        seconds = {stage: sum(each[stage] for each in mine) for stage in STAGES}
        total = sum(seconds.values())
        if total:
            shares = {stage: value / total for stage, value in seconds.items()}
            rows.append({**asdict(configuration), **shares})
    return rows


def ceilings(measured: Sequence[Measurement]) -> list[dict[str, Any]]:
    """`ceiling.Ceiling` by configuration; nothing where a round drafts nothing."""
    rows = []
    for configuration in configurations(measured)[1:]:
        mine = [m for m in measured if m.configuration == configuration]
        if depth := mine[0].drafts:
            histogram: dict[str, int] = {}
            for m in mine:
                for drafts, rounds in m.histogram.items():
                    histogram[drafts] = histogram.get(drafts, 0) + rounds
            rows.append(
                {**asdict(configuration), **asdict(ceiling(histogram, depth)), "histogram": histogram}
            )
    return rows


def _repeats(measured: Sequence[Measurement]) -> list[list[Measurement]]:
    """Answers to the same question together."""

    def question(m: Measurement) -> tuple[str, int, int]:
        return m.block, m.prompt, m.turn

    return [list(group) for _, group in groupby(sorted(measured, key=question), question)]


def _number(value: float) -> float | None:
    """JSON has no NaN: None where nothing was decoded."""
    return None if isnan(value) else value
