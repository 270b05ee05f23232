"""What a drawing needs of one verified tree: plain lists on the host, and where its nodes go.

`draw_text`, `draw_figure` and `draw_heatmap` turn it into terminal text and pictures.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp
from typing import Any

from .accept import Acceptance
from .token_tree import NONE, TokenTree

LONGEST_LABEL = 14  # characters of a token; longer ones lose their middle
SPELLED = {" ": "␣", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


@dataclass(frozen=True)
class DrawnRound:
    """One tree of n nodes, and what the target made of it.

    tokens, parent, depth, logprob: as in `TokenTree`, without padding; slot 0 is the root.
    path: accepted slots, the root first.
    committed: tokens that the round committed, the bonus token last.

    Raises ValueError for lists that are no tree, or a path that is none in it.
    """

    tokens: tuple[int, ...]
    parent: tuple[int, ...]
    depth: tuple[int, ...]
    logprob: tuple[float, ...]
    path: tuple[int, ...]
    committed: tuple[int, ...]

    def __post_init__(self) -> None:
        size = len(self.tokens)
        if not size or {len(self.parent), len(self.depth), len(self.logprob)} != {size}:
            raise ValueError("a tree needs as many parents, depths and logprobs as tokens, and a root")
        for slot, parent in enumerate(self.parent):
            above = self.depth[parent] if 0 <= parent < slot else -1
            if (parent == NONE) != (slot == 0) or self.depth[slot] != above + 1:
                raise ValueError(f"node {slot} has parent {parent} and depth {self.depth[slot]}")
        if self.path[:1] != (0,) or any(
            not 0 < slot < size or self.parent[slot] != above
            for above, slot in zip(self.path, self.path[1:], strict=False)
        ):
            raise ValueError(f"{list(self.path)} is no path from the root")

    @classmethod
    def of_trace(cls, row: Mapping[str, Any]) -> "DrawnRound":
        """From one entry of `/server_info`'s trace. Raises ValueError if it is none."""
        try:
            return cls(**{name: tuple(row[name]) for name in cls.__dataclass_fields__})
        except (KeyError, TypeError) as error:
            raise ValueError(f"this is no round of a trace ({error})") from error

    @classmethod
    def of_tree(cls, tree: TokenTree, accepted: Acceptance, request: int = 0) -> "DrawnRound":
        """From row `request` of a verified batch."""
        size, length = int(tree.size[request]), int(accepted.lengths[request])
        nodes = (tree.tokens, tree.parent, tree.depth, tree.logprob)
        outcome = (accepted.path, accepted.tokens)
        return cls(
            *(tuple(values[request, :size].tolist()) for values in nodes),
            *(tuple(values[request, :length].tolist()) for values in outcome),
        )

    @property
    def size(self) -> int:
        return len(self.tokens)

    @property
    def accepted(self) -> int:
        """Drafts accepted, the bonus token not counted."""
        return len(self.path) - 1

    @property
    def bonus(self) -> int | None:
        """The target's own token behind the path; None if the round committed none."""
        return self.committed[-1] if len(self.committed) > self.accepted else None

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Slots of each node's children, best score first."""
        found: list[list[int]] = [[] for _ in self.tokens]
        for slot, parent in enumerate(self.parent[1:], 1):
            found[parent].append(slot)
        return tuple(map(tuple, found))

    @cached_property
    def rank(self) -> tuple[int, ...]:
        """Place of each node among its siblings, from 0; 0 for the root."""
        ranks = [0] * self.size
        for family in self.children:
            for place, slot in enumerate(family):
                ranks[slot] = place
        return tuple(ranks)

    def probability(self, slot: int) -> float:
        """Of the node's path, under the drafter."""
        return exp(self.logprob[slot])


def rows(children: Sequence[Sequence[int]]) -> list[int]:
    """A row for each node of a drawing that runs from left to right, one depth a column; node 0 is the root.

    A node stands in the row of its first child, so that the path of first children reads along one line. Every
    leaf has a row of its own, subtrees lie in disjoint rows, and so no two nodes share a place.
    """
    found = [0] * len(children)
    free = 0
    todo = [0]
    while todo:
        node = todo.pop()
        found[node] = free
        if children[node]:
            todo.extend(reversed(children[node]))
        else:
            free += 1
    return found


def label(text: str, token: int) -> str:
    """A token's text on one short line, its blanks visible; a token without text shows its id."""
    shown = "".join(SPELLED.get(character, character) for character in text) or f"‹{token}›"
    shown = "".join(character if character.isprintable() else "�" for character in shown)
    if len(shown) > LONGEST_LABEL:
        shown = f"{shown[: LONGEST_LABEL // 2]}…{shown[-(LONGEST_LABEL // 2 - 1) :]}"
    return shown


def percent(probability: float) -> str:
    """`42%`, `4.2%`, `<0.1%`: two digits, where there is something to tell."""
    if probability < 0.001:
        return "<0.1%"
    return f"{probability:.0%}" if probability >= 0.0995 else f"{probability:.1%}"
