"""The configurations that `jetspec eval` compares, and how the user's lists spell them. Nothing is measured here."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from .compare import CompareError
from .config import SUFFIX
from .tree import ACCEPTANCES, EXPANSIONS, scoring_policy
from .tree_settings import KEY, READS_A_FILE

CHAIN = "chain"
HYBRID_ALPHA = 1.0  # of `hybrid` without one


@dataclass(frozen=True)
class Configuration:
    """One way to decode; these fields name it in every output.

    expansion:  none (plain decoding), chain, eager or optimal.
    scoring:    as `--jetspec-scoring` takes it, except that hybrid's alpha stands in a field of its own.
    budget:     nodes, root included; a chain's is at most the block length.
    acceptance: None where the server's default, or nothing, is to choose.
    """

    drafter: str
    expansion: str
    scoring: str
    alpha: float | None
    budget: int
    acceptance: str | None = None

    @property
    def scoring_text(self) -> str:
        return self.scoring if self.alpha is None else f"{self.scoring}:alpha={self.alpha}"

    @property
    def name(self) -> str:
        """For people; the drafter is left out."""
        if self == PLAIN:
            return "plain"
        scoring = () if self.scoring in ("none", "accum_logp") else (self.scoring_text,)
        acceptance = () if self.acceptance is None else (self.acceptance,)
        return " ".join((self.expansion, str(self.budget), *scoring, *acceptance))

    def drafts(self, block_length: int) -> int:
        """The most drafts that a round can accept, as far as block and budget go."""
        return 0 if self == PLAIN else min(block_length, self.budget) - 1

    def custom_params(self, eager_width: int) -> dict[str, Any] | None:
        """What a request asks a JETSPEC server for; None if it asks for nothing. Widths: a node of a tree of N
        nodes has at most N - 1 children."""
        if self == PLAIN:
            return None
        settings: dict[str, Any] = {"budget": self.budget}
        if self.expansion == CHAIN:
            settings["width"] = 1
        else:
            settings |= {"expansion": self.expansion, "scoring": self.scoring_text}
            if self.expansion == "eager":
                settings["width"] = max(1, min(eager_width, self.budget - 1))
        if self.acceptance is not None:
            settings["acceptance"] = self.acceptance
        return {KEY: settings}


PLAIN = Configuration("none", "none", "none", None, 1)


def grid(
    drafter: str,
    block_length: int,
    budgets: Sequence[int],
    expansions: Sequence[str],
    scorings: Sequence[str],
    acceptances: Sequence[str] = (),
) -> list[Configuration]:
    """Every combination once. A chain has neither side branches to rank nor more nodes than a block."""
    found = []
    for expansion in expansions:
        chain = expansion == CHAIN
        for acceptance, text, budget in product(
            acceptances or (None,), ("none",) if chain else scorings, budgets
        ):
            nodes = min(budget, block_length) if chain else budget
            found.append(Configuration(drafter, expansion, *name_and_alpha(text), nodes, acceptance))
    return list(dict.fromkeys(found))


def name_and_alpha(text: str) -> tuple[str, float | None]:
    """`"hybrid:alpha=0.5"` → `("hybrid", 0.5)`; another policy's text stays whole."""
    if text.partition(":")[0] != "hybrid":
        return text, None
    _, _, alpha = text.partition("alpha=")
    return "hybrid", float(alpha or HYBRID_ALPHA)


def parse_numbers(option: str, text: str) -> list[int]:
    """`"1,8,16"` → `[1, 8, 16]`.

    Raises:
        CompareError: something that is no list of positive numbers.
    """
    try:
        numbers = list(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        numbers = [0]
    if min(numbers) < 1:
        raise CompareError(f"{option} is {text!r}; give whole numbers from 1, like 1,8,16.")
    return numbers


def parse_names(option: str, text: str, known: Iterable[str]) -> list[str]:
    """Distinct names out of `known`, separated by commas.

    Raises:
        CompareError: another name.
    """
    names = list(dict.fromkeys(text.split(",")))
    if unknown := [name for name in names if name not in known]:
        raise CompareError(f"{option} has {unknown[0]!r}; give any of {','.join(known)}.")
    return names


def parse_expansions(text: str) -> list[str]:
    return parse_names("--expansions", text, (CHAIN, *EXPANSIONS))


def parse_acceptances(text: str | None, temperature: float) -> list[str]:
    """Empty where none are asked for. Raises CompareError also where there is nothing to sample."""
    if text and not temperature:
        raise CompareError(
            "--acceptance has no effect at temperature 0; add --temperature 1 or leave it out."
        )
    return parse_names("--acceptance", text, ACCEPTANCES) if text else []


def parse_scorings(texts: Iterable[str]) -> list[str]:
    """Texts of policies, separated by commas. What has no name of its own in front of `=` goes on with the text
    before: `"entropy,top2gap:beta=2,gap=1"` → `["entropy", "top2gap:beta=2,gap=1"]`.

    Raises:
        CompareError: a text that no policy understands, or two that read a file.
    """
    found: list[str] = []
    for part in (part for text in texts for part in text.split(",")):
        goes_on = "=" in part and ":" not in part.partition("=")[0]
        if goes_on and found:
            found[-1] += f",{part}"
        else:
            found.append(part)
    for text in found:
        try:
            scoring_policy(text)
        except ValueError as error:
            raise CompareError(f"--scoring: {error}.") from None
    if len({text for text in found if reads_a_file(text)}) > 1:
        raise CompareError(f"--scoring: a server reads one {READS_A_FILE} file; give each a run of its own.")
    return list(dict.fromkeys(found))


def reads_a_file(scoring: str) -> bool:
    """Then a server must be started with it: requests can't ask for it by themselves."""
    return scoring.partition(":")[0] == READS_A_FILE


def parse_drafters(text: str, known: Iterable[str]) -> list[tuple[str, str, Path | None]]:
    """`"NAME,NAME=HEAD,NAME+suffix"` → (label, name, head folder or None); labels are distinct and hold no whole
    paths. A name with `+suffix` is that drafter with retrieved branches grafted onto its trees.

    Raises:
        CompareError: an unknown name, or the same name and head twice.
    """
    parts = [part.partition("=") for part in text.split(",")]
    grafted = [f"{name}+{SUFFIX}" for name in known if name != SUFFIX]
    parse_names("--drafters", ",".join(name for name, _, _ in parts), [*known, *grafted])
    names = [name for name, _, _ in parts]
    found = []
    for name, equals, head in parts:
        folder = Path(head) if equals else None
        label = name if names.count(name) == 1 else f"{name}={folder.name if folder else 'default'}"
        found.append((label, name, folder))
    labels = [label for label, _, _ in found]
    if len(set(labels)) < len(labels):
        raise CompareError(f"--drafters is {text!r}; heads of one drafter need folders of different names.")
    return found
