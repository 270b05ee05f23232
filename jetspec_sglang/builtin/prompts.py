"""Prompts to compare decoding on: the packaged held-out set, or a user's own JSONL file."""

import json
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

HELD_OUT = Path(__file__).with_name("heldout.jsonl")


class PromptError(ValueError):
    """A prompt file that can't be used; the message is one sentence."""


@dataclass(frozen=True)
class Prompt:
    """What a user says, turn after turn, and the kind of text that it asks for."""

    domain: str
    turns: tuple[str, ...]

    @property
    def label(self) -> str:
        """One short line: the function to complete, else how the text begins."""
        for line in self.turns[0].splitlines():
            if line.startswith("def "):
                return line.strip()
        return " ".join(self.turns[0].split())


def load_prompts(file: Path | None = None) -> list[Prompt]:
    """Rows `{"turns": ["…", …], "domain": "…"}` of `file` (default: the held-out set); `domain` is optional.

    Raises:
        PromptError: no such file, no prompt in it, or a row of another form.
    """
    file = file or HELD_OUT
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(f"The prompts in {file} can't be read ({error}).") from error
    prompts = [_prompt(line, f"{file}, line {n}") for n, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise PromptError(f"{file} holds no prompts; write rows like {_EXAMPLE}.")
    return prompts


_EXAMPLE = '{"domain": "chat", "turns": ["Hello!"]}'


def _prompt(line: str, where: str) -> Prompt:
    try:
        row = json.loads(line)
        turns, domain = row["turns"], row.get("domain", "own")
        if not isinstance(turns, list) or not turns:
            raise TypeError
        if not all(isinstance(text, str) and text for text in (*turns, domain)):
            raise TypeError
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PromptError(f"{where} is no prompt; write rows like {_EXAMPLE}.") from error
    return Prompt(domain, tuple(turns))


def mixed(prompts: list[Prompt], count: int) -> list[Prompt]:
    """The first `count` prompts, taken from the domains in turn."""
    domains: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        domains.setdefault(prompt.domain, []).append(prompt)
    rounds = zip_longest(*domains.values())
    return [prompt for row in rounds for prompt in row if prompt is not None][:count]
