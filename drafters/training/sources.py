"""Where prompts and corpora come from: rows of JSONL files and hub data sets, and the built-in prompts.

A source is cut into numbered batches, one a shard. A batch depends on its number and the seed alone, so that a
stage which was stopped goes on, and several processes can share the work.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from jetspec_sglang.builtin import BUILTIN

from . import prompts
from .errors import TrainError

SELF_WRITTEN = 0.4  # share of built-in prompts that the target itself writes; the others come from templates

# Names that data sets give to a prompt and to its answer.
_PAIRS = (
    ("prompt", "response"),
    ("prompt", "completion"),
    ("instruction", "output"),
    ("question", "answer"),
    ("prompt", None),
)
_ROLES = {"human": "user", "gpt": "assistant"}


@dataclass(frozen=True)
class Row:
    """Chat messages up to a user's turn, and the answer if the data set has one; or a plain text alone."""

    messages: list[dict[str, str]] = field(default_factory=list)
    response: str | None = None
    text: str | None = None

    @property
    def question(self) -> str:
        """The user's last words, by which held-out prompts are recognised."""
        return self.messages[-1]["content"] if self.messages else ""


def parse_row(raw: dict[str, Any], where: str) -> Row:
    """A row with `messages` (or `conversations`), `turns`, `text`, or a prompt and its answer under usual names.

    Raises TrainError that names what was there.
    """
    if "messages" in raw or "conversations" in raw:
        return _conversation(raw.get("messages") or raw["conversations"], where)
    if raw.get("turns"):
        return Row([_user(raw["turns"][0])])
    for prompt, response in _PAIRS:
        if raw.get(prompt) and (response is None or response in raw):
            more = f"\n\n{raw['input']}" if prompt == "instruction" and raw.get("input") else ""
            return Row([_user(raw[prompt] + more)], raw[response] if response else None)
    if raw.get("text"):
        return Row(text=raw["text"])
    raise TrainError(
        f"{where}: a row needs `messages`, `turns`, `text`, or a prompt such as `prompt`, `instruction` or "
        f"`question`; it has {', '.join(raw) or 'nothing'}"
    )


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _conversation(messages: list[dict], where: str) -> Row:
    turns = [
        {
            "role": _ROLES.get(turn["from"], turn["from"]) if "from" in turn else turn["role"],
            "content": turn["value"] if "value" in turn else turn["content"],
        }
        for turn in messages
    ]
    response = turns.pop()["content"] if turns and turns[-1]["role"] == "assistant" else None
    if not turns or turns[-1]["role"] != "user":
        raise TrainError(f"{where}: messages must end with a user's turn, or with the answer to one")
    return Row(turns, response)


def read_rows(place: str, split: str) -> list[Row]:
    """Rows of a JSONL file or of a hub data set."""
    if place.endswith((".jsonl", ".json")):
        path = Path(place).expanduser()
        try:
            lines = [line for line in path.read_text().splitlines() if line.strip()]
            raw = [(json.loads(line), f"{place}, line {number}") for number, line in enumerate(lines, 1)]
        except (OSError, json.JSONDecodeError) as error:
            raise TrainError(f"{place} can't be read as JSON lines: {error}") from error
        return [parse_row(row, where) for row, where in raw]
    return [parse_row(dict(row), f"{place}, row {number}") for number, row in enumerate(_hub(place, split))]


def _hub(name: str, split: str) -> Iterable[Any]:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise TrainError(
            "hub data sets need the extra `train`: pip install 'jetspec-sglang[train]'"
        ) from error
    try:
        return load_dataset(name, split=split)
    except Exception as error:  # whatever a loading script, the hub or the network comes up with
        raise TrainError(
            f"data set {name} (split {split}) is not within reach: {error}; give a JSONL file, the name of a data "
            "set on the Hugging Face hub, or `builtin`"
        ) from error


def heldout_rows(place: str) -> list[Row]:
    """The held-out prompts: the built-in ones or those of a JSONL file."""
    if place == BUILTIN:
        return [Row([_user(row["turns"][0])]) for row in prompts.heldout_rows()]
    return read_rows(place, "")


class Source(Protocol):
    """Numbered batches of rows; None behind the last one."""

    name: str

    def batch(self, number: int, size: int) -> list[Row] | None: ...


class Rows:
    """A fixed set of rows, shuffled once, without those whose question is held out."""

    def __init__(self, name: str, rows: list[Row], heldout: list[Row], seed: int) -> None:
        questions = {row.question for row in heldout if row.question}
        self.rows = [row for row in rows if row.question not in questions]
        self.name = name
        random.Random(seed).shuffle(self.rows)

    def batch(self, number: int, size: int) -> list[Row] | None:
        return self.rows[number * size : (number + 1) * size] or None


class Builtin:
    """The built-in prompts: first those of the wheels, then templates and the target's own, without end."""

    name = (
        "templates, to prompts that it wrote itself, and to prompts of HumanEval, MT-Bench and GSM8K that are "
        "not held out"
    )

    def __init__(self, heldout: list[Row], seed: int, write: Callable[[list[str], int], list[str]]) -> None:
        """`write(openings, seed)` lets the target continue opened user turns."""
        rows = [Row([_user(row["turns"][0])]) for row in prompts.wheel_rows()]
        self.wheels = Rows("the wheels", rows, heldout, seed)
        self.seed, self.write = seed, write

    def batch(self, number: int, size: int) -> list[Row]:
        rng = random.Random(f"{self.seed}-{number}")
        rows = self.wheels.batch(number, size) or []
        if not rows:
            openings = [rng.choice(prompts.STARTERS) for _ in range(int(size * SELF_WRITTEN))]
            rows = [Row([_user(text)]) for text in self.write(openings, rng.getrandbits(32))]
        while len(rows) < size:
            rows.append(Row([_user(prompts.template_prompt(rng))]))
        return rows
