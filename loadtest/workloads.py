"""What is asked: conversations from the built-in set, a file or a hub, in a seeded order that all methods share."""

import hashlib
import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from .config import LoadConfig

BUILTIN = "builtin"
USER, ASSISTANT = "user", "assistant"
WORDS = (
    *("river", "stone", "garden", "winter", "letter", "market", "silver", "window", "harbour", "candle"),
    *("forest", "engine", "paper", "summer", "bridge", "mirror", "orange", "planet", "castle", "guitar"),
)


class WorkloadError(ValueError):
    """Prompts that can't be used; the message is one sentence."""


@dataclass(frozen=True)
class Conversation:
    """What a user says, turn after turn, and the kind of text that it asks for."""

    domain: str
    turns: tuple[str, ...]


class Workload:
    """Conversations in a fixed order: the n-th arrival of a run plays `at(n)`, whatever the server is.

    All are played once in an order drawn from `seed` before any is played again, in another order. A prompt
    that comes again may be in the server's prefix cache; records say so (`cached_tokens`).
    """

    def __init__(self, name: str, conversations: Sequence[Conversation], seed: int) -> None:
        self.name = name
        self.conversations = list(conversations)
        self._seed = seed
        self._orders: dict[int, list[int]] = {}

    def at(self, arrival: int) -> tuple[int, Conversation]:
        """Number in the workload, and the conversation, of arrival 0, 1, …"""
        pass_, place = divmod(arrival, len(self.conversations))
        if pass_ not in self._orders:
            uniform = random.Random(f"{self._seed}/{pass_}").random
            keys = [uniform() for _ in self.conversations]
            self._orders[pass_] = sorted(range(len(keys)), key=keys.__getitem__)
        number = self._orders[pass_][place]
        return number, self.conversations[number]

    def describe(self) -> dict[str, Any]:
        """For the record: name, size, and a hash that is equal only for equal prompts."""
        text = json.dumps([[c.domain, *c.turns] for c in self.conversations])
        digest = hashlib.sha256(text.encode()).hexdigest()
        return {"name": self.name, "conversations": len(self.conversations), "sha256": digest}


def load_workload(config: LoadConfig) -> Workload:
    """The workload that `config` names, cut to `max_turns`, behind the shared prefix if it wants one.

    Raises:
        WorkloadError: no such source, or nothing usable in it.
    """
    conversations = [
        Conversation(found.domain, found.turns[: config.max_turns]) for found in _source(config.workload)
    ]
    if config.shared_prefix:
        prefix = shared_text(config.shared_prefix)
        conversations = [
            Conversation(c.domain, (f"{prefix}\n\n{c.turns[0]}", *c.turns[1:])) for c in conversations
        ]
    return Workload(config.workload, conversations, config.seed)


def shared_text(words: int) -> str:
    """The same `words` words every time."""
    uniform = random.Random(0).random
    return " ".join(WORDS[int(uniform() * len(WORDS))] for _ in range(words))


def prompt_text(messages: Sequence[tuple[str, str]], template: str) -> str:
    """`(role, text)` messages as one text for an API without messages, up to where the answer begins.

    "none" puts the texts one after another, for base models; "chatml" marks the roles.
    """
    if template == "none":
        return "\n\n".join(text for _, text in messages)
    marked = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in messages)
    return f"{marked}<|im_start|>{ASSISTANT}\n"


def _source(name: str) -> list[Conversation]:
    if name == BUILTIN or name.startswith(f"{BUILTIN}:"):
        return _builtin([part for part in name.removeprefix(BUILTIN).lstrip(":").split(",") if part])
    if name.startswith("hf:"):
        return _from_hub(name)
    file = Path(name)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(f"The workload {name} can't be read ({error}).") from error
    match file.suffix:
        case ".jsonl":
            return _from_jsonl(text, name)
        case ".json":
            return _from_sharegpt(text, name)
    raise WorkloadError(f"The workload {name} is neither .jsonl nor .json; {_FORMS}.")


_FORMS = 'write lines {"turns": ["…"]} to a .jsonl, or ShareGPT\'s [{"conversations": […]}] to a .json'


def _builtin(domains: list[str]) -> list[Conversation]:
    text = files("jetspec_sglang").joinpath("builtin", "heldout.jsonl").read_text(encoding="utf-8")
    found = _from_jsonl(text, BUILTIN)
    known = sorted({conversation.domain for conversation in found})
    if unknown := set(domains) - set(known):
        raise WorkloadError(f"There is no built-in domain {min(unknown)}; there are {', '.join(known)}.")
    return [conversation for conversation in found if not domains or conversation.domain in domains]


def _from_jsonl(text: str, where: str) -> list[Conversation]:
    found = []
    for n, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                row = json.loads(line)
                found.append(_conversation(row["turns"], row.get("domain", "own")))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise WorkloadError(f"{where}, line {n} is no conversation; {_FORMS}.") from error
    return _some(found, where)


def _from_sharegpt(text: str, where: str) -> list[Conversation]:
    try:
        rows = json.loads(text)
        found = [turns for row in rows if (turns := _human_turns(row["conversations"]))]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WorkloadError(f"{where} is not ShareGPT-like; {_FORMS}.") from error
    return _some([_conversation(turns, "sharegpt") for turns in found], where)


def _human_turns(messages: Iterable[dict[str, str]]) -> list[str]:
    """What the user said; some files call the user `human` and the keys from/value, others user, role/content."""
    spoken = [(m.get("from", m.get("role")), m.get("value", m.get("content"))) for m in messages]
    return [text for role, text in spoken if role in ("human", "user") and text]


def _from_hub(name: str) -> list[Conversation]:
    parts = name.split(":")
    if len(parts) != 4:
        raise WorkloadError(f"The workload is {name}; name split and column, as hf:OWNER/NAME:SPLIT:COLUMN.")
    _, repository, split, column = parts
    from datasets import load_dataset  # slow to import, and not needed for anything else

    try:
        rows = load_dataset(repository, split=split)
        cells = [row[column] for row in rows]
        turns = [_hub_turns(cell) for cell in cells]
    except Exception as error:  # the library's own errors have no common class
        raise WorkloadError(f"{name} can't be loaded ({type(error).__name__}: {error}).") from error
    return _some([_conversation(texts, repository) for texts in turns if texts], name)


def _hub_turns(cell: Any) -> list[str]:
    """A column holds a prompt, a list of turns, or a list of messages."""
    if isinstance(cell, str):
        return [cell] if cell else []
    return _human_turns(cell) if cell and isinstance(cell[0], dict) else list(cell)


def _conversation(turns: Sequence[str], domain: str) -> Conversation:
    if not turns or not all(isinstance(text, str) and text for text in (*turns, domain)):
        raise TypeError("turns and domain are texts that are not empty")
    return Conversation(domain, tuple(turns))


def _some(found: list[Conversation], where: str) -> list[Conversation]:
    if not found:
        raise WorkloadError(f"{where} holds no conversations; {_FORMS}.")
    return found
