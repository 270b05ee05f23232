"""The raw results, as they are written to JSON. Everything that is shown is computed from them.

Log-probabilities are in nats, of the whole vocabulary that the drafter or the target has, at temperature 1.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Row(BaseModel):
    model_config = ConfigDict(frozen=True)


class Branch(Row):
    """One complete block that a drafter may propose, of D tokens."""

    text: str
    tokens: list[int]
    draft: list[float]  # of each token, as the drafter scores it
    target: list[float]  # of each token, the branch's tokens before it being given
    accepted: int  # leading tokens that the target's greedy continuation has

    @property
    def draft_joint(self) -> float:
        return sum(self.draft)

    @property
    def target_joint(self) -> float:
        return sum(self.target)

    @property
    def gap(self) -> float:
        """How much likelier the drafter takes the branch to be than the target does, nats."""
        return self.draft_joint - self.target_joint


class Draft(Row):
    """What one head proposes at one prefix."""

    branches: list[Branch]  # the likeliest first
    tree_accepted: int  # drafts that its tree has of the target's greedy continuation


class Round(Row):
    """One prefix, the same for all heads."""

    prompt: int  # of `Measured.prompts`, from 0
    number: int  # of the answer's rounds, from 1
    anchor: int  # position of the last committed token
    prefix: str  # the text's end, anchor included
    truth: str  # how the target goes on
    drafts: dict[str, Draft]  # by the head's label


class Prompt(Row):
    domain: str
    label: str  # how it begins


class Head(Row):
    folder: str
    drafter: str
    drafted: int  # tokens of a block, without the anchor
    vocabulary: int  # tokens that it can draft


class Cost(Row):
    """Drafting `drafted` tokens behind `context` ones, and the target's pass over them and the anchor; seconds."""

    head: str
    context: int
    drafted: int
    draft_seconds: float
    target_seconds: float

    @property
    def relative(self) -> float:
        """c: one drafted token's share of a target pass."""
        return self.draft_seconds / self.drafted / self.target_seconds


class Measured(Row):
    machine: dict[str, str | int]
    target: str
    dtype: str
    budget: int  # nodes of the tree, root included
    heads: dict[str, Head]
    prompts: list[Prompt]
    rounds: list[Round]
    cost: list[Cost]
