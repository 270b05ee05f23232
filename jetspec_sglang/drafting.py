"""Where a round's trees come from: a head, earlier text, or both.

The worker asks for `trees` each round and hands over what was committed; what a drafter needs of it, and when, is
decided here. Retrieval costs no forward and is asked in every round, also in those for which an adaptive budget
plans no draft.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from jetspec_sglang.drafters.contract import CommittedTokens, DrafterFactory, RetrievalDrafter
from jetspec_sglang.drafters.head_config import AnyHead
from jetspec_sglang.drafters.no_head import NoHead
from jetspec_sglang.drafters.registry import DRAFTERS
from jetspec_sglang.tree import TokenTree, scoring_policy
from jetspec_sglang.tree.budget import Plan
from jetspec_sglang.tree.chances import CELLS, claims, with_chances
from jetspec_sglang.tree.graft import graft
from jetspec_sglang.tree.tally import Tally, judged

from .config import SUFFIX, JetSpecConfig
from .deferred_context import DeferredContext
from .metrics import RetrievalMetrics
from .round_trees import build_trees, candidates, grow_trees
from .stage_clock import DeviceClock, HostClock
from .tree_settings import TreeSettings


class TreeSource(Protocol):
    """What the worker needs of drafting.

    worker: SGLang's worker of the drafter's model, None without one; runners: its model runners. slots: scratch
    slots that a request needs at most. taps: whether the target's features are read.
    """

    worker: Any
    runners: Sequence[Any]
    slots: int
    taps: bool

    def take_in(self, committed: CommittedTokens, wait: bool) -> None:
        """Committed tokens; `wait`: the next draft may be far away."""

    def trees(
        self, plan: Plan, anchors: torch.Tensor, slots: torch.Tensor, settings: list[TreeSettings], batch: Any
    ) -> TokenTree:
        """The trees of a round, as large as its requests allow; roots alone if nothing is drafted."""

    def finished(self, rid: str) -> None:
        """A request of that id has ended."""

    def clear(self) -> None:
        """Forget the requests that have ended: SGLang's cache was flushed."""

    def report(self) -> dict[str, Any]:
        """What `/server_info` shows of it."""


def tree_source(
    config: JetSpecConfig,
    head: AnyHead | NoHead,
    clock: HostClock | DeviceClock,
    metrics: bool,
    **engine: Any,
) -> TreeSource:
    """As `config` says. engine: what a `DrafterFactory` takes beside head, width and depth."""

    def made(name: str, head: AnyHead | NoHead, depth: int) -> Any:
        make: DrafterFactory = DRAFTERS.get(name)
        return make(head=head, width=config.width, depth=depth, **engine)

    def retrieval() -> "RetrievedTrees":
        drafter = made(SUFFIX, NoHead(SUFFIX, config.suffix_cache), config.depth)
        return RetrievedTrees(drafter, clock, RetrievalMetrics() if metrics else None)

    if config.drafter == SUFFIX:
        return retrieval()
    heads = HeadTrees(made(config.drafter, head, config.head_depth), config.head_depth, clock)
    return heads if config.graft == "none" else GraftedTrees(heads, retrieval(), clock)


class HeadTrees:
    """Drafted by a model up to `depth` deep."""

    def __init__(self, drafter: Any, depth: int, clock: HostClock | DeviceClock) -> None:
        self.worker: Any = drafter.worker
        self.runners: Sequence[Any] = [drafter.runner]
        self.slots, self.taps = drafter.slots(depth), bool(drafter.spec.target_layer_ids)
        self._drafter, self._depth, self._clock = drafter, depth, clock
        self._context = DeferredContext(drafter)

    def take_in(self, committed: CommittedTokens, wait: bool) -> None:
        (self._context.defer if wait else self._context.append)(committed)

    def trees(
        self, plan: Plan, anchors: torch.Tensor, slots: torch.Tensor, settings: list[TreeSettings], batch: Any
    ) -> TokenTree:
        if plan.depth == 0:
            return TokenTree.roots(anchors)
        budget, depth = max(own.budget for own in settings), min(plan.depth, self._depth)
        drafter = self._drafter
        with self._clock.stage("draft"):
            self._context.flush()
            slots = slots[:, : drafter.slots(depth)]
            if drafter.spec.conditioning == "path":  # drafting and building take turns
                return grow_trees(drafter, anchors, slots, batch, settings, budget, depth)
            entropy = any(scoring_policy(own.scoring).needs_entropy for own in settings)
            proposal = drafter.propose(
                anchors, slots, batch, entropy=entropy, candidates=candidates(settings)
            )
        with self._clock.stage("build"):
            return build_trees(proposal, anchors, settings, budget, batch.sampling_info)

    def finished(self, rid: str) -> None:
        pass

    def clear(self) -> None:
        pass

    def report(self) -> dict[str, Any]:
        return {}


class RetrievedTrees:
    """Found in texts."""

    worker: Any = None
    runners: Sequence[Any] = ()
    slots = 0
    taps = False

    def __init__(
        self, drafter: RetrievalDrafter, clock: HostClock | DeviceClock, metrics: RetrievalMetrics | None
    ) -> None:
        self.drafter, self._clock, self._metrics = drafter, clock, metrics

    def take_in(self, committed: CommittedTokens, wait: bool) -> None:
        self.drafter.append_context(committed)

    def trees(
        self, plan: Plan, anchors: torch.Tensor, slots: torch.Tensor, settings: list[TreeSettings], batch: Any
    ) -> TokenTree:
        return self.branches(anchors, batch, [own.budget for own in settings], settings).to(anchors.device)

    def branches(
        self, anchors: torch.Tensor, batch: Any, budgets: list[int], settings: list[TreeSettings]
    ) -> TokenTree:
        with self._clock.stage("draft"):
            depths, shown = [own.depth for own in settings], [own.trace for own in settings]
            return self.drafter.branches(anchors, batch, budgets, depths, shown)

    def finished(self, rid: str) -> None:
        self.drafter.finished(rid)
        self._tell()

    def clear(self) -> None:
        self.drafter.clear()
        self._tell()

    def _tell(self) -> None:
        if self._metrics:
            self._metrics.holds(self.drafter.report())

    def report(self) -> dict[str, Any]:
        return {SUFFIX: self.drafter.report()}


class GraftedTrees:
    """A head's trees with what was found in texts. All nodes compete by their chance to be accepted.

    Both scales are learnt from the texts themselves: what a request's text has grown by says which nodes of its last
    trees came true, whether they were verified or not.
    """

    def __init__(self, heads: HeadTrees, retrieved: RetrievedTrees, clock: HostClock | DeviceClock) -> None:
        self.worker, self.runners, self.slots, self.taps = (
            heads.worker,
            heads.runners,
            heads.slots,
            heads.taps,
        )
        self._heads, self._retrieved, self._clock = heads, retrieved, clock
        self._tally = Tally(CELLS)
        # Of each request's last tree: tokens, parents, what its nodes claimed and the kinds of the claims.
        self._waiting: dict[str, tuple[np.ndarray, ...]] = {}

    def take_in(self, committed: CommittedTokens, wait: bool) -> None:
        self._heads.take_in(committed, wait)
        self._retrieved.take_in(committed, wait)

    def trees(
        self, plan: Plan, anchors: torch.Tensor, slots: torch.Tensor, settings: list[TreeSettings], batch: Any
    ) -> TokenTree:
        drafted = self._heads.trees(plan, anchors, slots, settings, batch)
        grafts = [own.graft != "none" for own in settings]
        budgets = [own.budget if wanted else 1 for own, wanted in zip(settings, grafts, strict=True)]
        branches = self._retrieved.branches(anchors, batch, budgets, settings)
        with self._clock.stage("build"):
            tree = drafted.to(torch.device("cpu"))
            claim, cell = claims(tree)
            rids = [req.rid for req in batch.reqs]
            self._learn(rids)
            calibrated = with_chances(tree, claim, cell, self._tally)
            mask = torch.tensor(grafts)
            logprob = calibrated.logprob.where(mask[:, None], tree.logprob)
            tree = TokenTree(tree.tokens, tree.parent, tree.depth, logprob, tree.size)
            self._waiting = {
                rid: (tree.tokens[row].numpy(), tree.parent[row].numpy(), claim[row], cell[row])
                for row, rid in enumerate(rids)
                if grafts[row]
            }
            most = [own.budget for own in settings]
            return graft(tree, branches, max(most), most).to(anchors.device)

    def _learn(self, rids: list[str]) -> None:
        for rid, actual in zip(rids, self._retrieved.drafter.grown, strict=True):
            if rid in self._waiting and len(actual):
                tokens, parent, claim, cell = self._waiting[rid]
                nodes, accepted = judged(tokens, parent, int((tokens >= 0).sum()), actual)
                self._tally.learn(claim[nodes], cell[nodes], accepted)

    def finished(self, rid: str) -> None:
        self._retrieved.finished(rid)

    def clear(self) -> None:
        self._retrieved.clear()

    def report(self) -> dict[str, Any]:
        return self._retrieved.report()
