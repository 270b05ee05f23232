"""The worker's side of the budget: what to draft and verify in a round, and what a finished round teaches."""

import logging
import time
from dataclasses import dataclass
from typing import Protocol

import torch

from .stage_clock import FinishedRound
from .tree import TokenTree
from .tree.budget import AdaptiveBudget, CostModel, Plan, RoundShape
from .tree_settings import TreeSettings

logger = logging.getLogger(__name__)
LOG_SECONDS = 10.0


@dataclass(frozen=True)
class Note:
    """What a round leaves with its times: what was planned and what became of it. Roots alone leave no tree."""

    plan: Plan
    shape: RoundShape
    slots: int  # of the trees before the cut; 0 for roots alone


class RoundBudget(Protocol):
    """Decides in two steps: `plan` before drafting, `cut` when the trees are there.

    learns: whether finished rounds must bring their trees.
    """

    learns: bool

    def plan(self, settings: list[TreeSettings], context: int) -> Plan: ...

    def cut(self, plan: Plan, tree: TokenTree, settings: list[TreeSettings], context: int) -> int: ...

    def chosen(self, shape: RoundShape, probe: bool) -> None: ...

    def learn(self, finished: FinishedRound) -> None: ...

    def report(self) -> dict | None: ...


def caps_of(settings: list[TreeSettings]) -> list[int]:
    """Most nodes that each request's tree can have."""
    return [own.budget for own in settings]


def deepest(settings: list[TreeSettings]) -> int:
    """How deep the deepest tree can be: no deeper than a chain of its nodes."""
    return max(min(own.depth, own.budget - 1) for own in settings)


class WidthLog:
    """Tells the log now and then how many nodes are verified."""

    def __init__(self) -> None:
        self._at, self._said = time.monotonic(), 0

    def note(self, shape: RoundShape) -> None:
        now = time.monotonic()
        if shape.nodes != self._said and now - self._at >= LOG_SECONDS:
            text = "JETSPEC verifies %d nodes a request at batch %d (last said: %d)."
            logger.info(text, shape.nodes, shape.batch, self._said)
            self._at, self._said = now, shape.nodes


class FixedBudget:
    """As many nodes as the requests have, always."""

    learns = False

    def plan(self, settings: list[TreeSettings], context: int) -> Plan:
        return Plan(max(caps_of(settings)), deepest(settings))

    def cut(self, plan: Plan, tree: TokenTree, settings: list[TreeSettings], context: int) -> int:
        return tree.budget

    def chosen(self, shape: RoundShape, probe: bool) -> None:
        pass

    def learn(self, finished: FinishedRound) -> None:
        pass

    def report(self) -> None:
        return None


class LoadBudget:
    """As many nodes as pay (`AdaptiveBudget`), at most as many as the requests have.

    Where trees lie on the host, each round is cut by its own trees; elsewhere the plan, made from earlier rounds,
    stands, as looking at the trees would make the host wait.
    """

    learns = True

    def __init__(self, cost: CostModel, budget: int, max_depth: int) -> None:
        self._adaptive = AdaptiveBudget(cost, budget, max_depth)
        self._log = WidthLog()

    def plan(self, settings: list[TreeSettings], context: int) -> Plan:
        plan = self._adaptive.plan(len(settings), context, max(caps_of(settings)))
        return Plan(plan.nodes, min(plan.depth, deepest(settings)), plan.probe)

    def cut(self, plan: Plan, tree: TokenTree, settings: list[TreeSettings], context: int) -> int:
        if tree.logprob.device.type != "cpu":
            return min(plan.nodes, tree.budget)
        caps = torch.tensor(caps_of(settings)).numpy()
        return self._adaptive.cut(plan, tree.logprob.numpy(), tree.depth.numpy(), caps, context)

    def chosen(self, shape: RoundShape, probe: bool) -> None:
        self._adaptive.chosen(shape, probe)
        self._log.note(shape)

    def learn(self, finished: FinishedRound) -> None:
        note: Note = finished.note
        self._adaptive.cost.observe(note.shape, sum(finished.seconds.values()), finished.gap)
        if note.slots:
            logprob, depth, on_path = (tensor.numpy() for tensor in finished.tensors)
            self._adaptive.learn_tree(logprob, depth, note.shape.depth)
            nodes = note.shape.nodes
            self._adaptive.learn_outcome(logprob[:, :nodes], depth[:, :nodes], on_path[:, :nodes])

    def report(self) -> dict:
        return self._adaptive.report()
