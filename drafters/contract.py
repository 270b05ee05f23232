"""What a drafter is (data), what a served one must do, and how one is made (protocols)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from jetspec_sglang.tree import DraftProposal, Expander, TokenTree

from .head_config import AnyHead, AutoregressiveConfig, HeadConfig, LayeredConfig, SpecBlockConfig
from .no_head import NoHead


@dataclass(frozen=True)
class DrafterSpec:
    """Facts about a drafter that the rest of the system may rely on.

    ``conditioning`` tells the truth about the proposal's rows: "marginal" is one row a depth, shared by all
    nodes of that depth (released JetSpec and DFlash heads: the head never sees a drafted token); "path" is
    a row that depends on the drafted tokens above it (autoregressive and spec-block heads, and block heads
    with a corrector);
    "retrieved" is no row at all, but branches that were found in texts.
    """

    name: str
    conditioning: Literal["marginal", "path", "retrieved"]
    causal: bool  # a block may be cut or extended without changing its first rows
    block_length: int  # the depth it drafts, and one for the anchor
    target_layer_ids: tuple[int, ...]
    mask_token_id: int | None
    forwards_per_round: int

    def __post_init__(self) -> None:
        if self.block_length < 2:
            raise ValueError(
                f"block_length is {self.block_length}, but a block holds the anchor and >= 1 draft"
            )
        if self.forwards_per_round < 1 and self.conditioning != "retrieved":
            raise ValueError(
                f"forwards_per_round is {self.forwards_per_round}, but drafting takes at least one"
            )

    @classmethod
    def of_head(cls, head: AnyHead, depth: int, target_layers: int) -> DrafterSpec:
        """Of our own drafter for a head, where trees are up to `depth` deep: a bidirectional block stays whole."""
        whole = isinstance(head, HeadConfig) and not head.causal
        forwards = 1
        if isinstance(head, AutoregressiveConfig):
            forwards = depth
        elif isinstance(head, SpecBlockConfig):
            forwards = head.forwards(depth)
        return cls(
            name=head.drafter,
            conditioning=head.conditioning,
            causal=not whole,
            block_length=head.block_size if whole else depth + 1,
            target_layer_ids=head.taps(target_layers),
            mask_token_id=head.mask_token_id if isinstance(head, LayeredConfig) else None,
            forwards_per_round=forwards,
        )

    @classmethod
    def of_retrieval(cls, name: str, depth: int) -> DrafterSpec:
        """Of a drafter without a model, where trees are up to `depth` deep."""
        return cls(
            name=name,
            conditioning="retrieved",
            causal=True,
            block_length=depth + 1,
            target_layer_ids=(),
            mask_token_id=None,
            forwards_per_round=0,
        )


class CommittedTokens(NamedTuple):
    """T tokens that were committed, of any requests. A slot is there once, unless it is the sink."""

    taps: Tensor  # [T, K*H], the target's features; H is 0 where no head reads any
    slots: Tensor  # [T] int64, where the target's K/V of the token lies
    positions: Tensor  # [T] int64, absolute
    tokens: Tensor  # [T] int64
    previous: Tensor  # [T] int64, the slot of the token before it; the sink for a text's first


@runtime_checkable
class ServedDrafter(Protocol):
    """A drafter inside a serving engine, whose own objects (Any) pass through untouched by this contract.

    What it keeps of committed tokens is addressed by the target's slot ids, and an entry depends on no token
    after its own, so that prefix caching, retraction and abort need no state of the drafter's own.
    """

    spec: DrafterSpec
    worker: Any  # SGLang's worker of the drafter: memory pool, attention backend and graphs are set up by it
    runner: Any  # its model runner; weight updates go there. Both None where there is no model

    def slots(self, depth: int) -> int:
        """How many scratch slots a request needs where `depth` depths are drafted: at most `Head.slots`."""

    def append_context(self, committed: CommittedTokens) -> None:
        """Take in committed tokens. Those before them have been taken in, or are among them."""


@runtime_checkable
class MarginalDrafter(ServedDrafter, Protocol):
    """A drafter whose `spec.conditioning` is "marginal"."""

    def propose(
        self,
        anchors: Tensor,
        slots: Tensor,
        batch: Any,
        *,
        entropy: bool = False,
        candidates: int | None = None,
    ) -> DraftProposal:
        """Draft after ``anchors`` [B] int64, with ``slots`` [B, L] int64 as scratch.

        L is what `slots` says for the wanted depth. A causal block gives that many depths, a bidirectional one
        all it has. ``entropy``: the proposal must carry the rows' entropy. ``candidates``: how many of them a
        row must have, as far as the vocabulary goes; the factory's ``width`` if None.
        """


@runtime_checkable
class PathDrafter(ServedDrafter, Protocol):
    """A drafter whose `spec.conditioning` is "path"."""

    frontier: int | None  # most nodes of a depth that are drafted from; None: as many as the tree can use

    def expander(
        self, slots: Tensor, batch: Any, *, width: int, depth: int, budget: int, entropy: bool = False
    ) -> Expander:
        """What `tree.build_tree_by_path` asks, level by level, for the trees of one round: of at most ``budget``
        nodes, the root included, and up to ``depth`` deep.

        slots: [B, L] int64 scratch; L is what `slots` says for the wanted depth. Rows have ``width`` candidates,
        and their entropy if asked for. May be called again in the round, which begins anew.
        """


@runtime_checkable
class RetrievalDrafter(ServedDrafter, Protocol):
    """A drafter whose `spec.conditioning` is "retrieved". It costs no forward, so it is asked every round.

    grown: the tokens that each request's text has grown by from one call of `branches` to the last, the anchor last;
    [] for those with a budget of 1.
    """

    grown: Sequence[np.ndarray]

    def branches(
        self,
        anchors: Tensor,
        batch: Any,
        budgets: Sequence[int],
        depths: Sequence[int],
        shown: Sequence[bool],
    ) -> TokenTree:
        """Trees below ``anchors`` [B] int64 of at most ``budgets[b]`` nodes, root included, ``depths[b]`` deep.

        ``shown[b]``: somebody looks at the drafts of request b, so nothing in them may come from other requests.

        They lie on the host. `logprob` is the logarithm of a node's chance to be accepted, as earlier rounds teach
        it: such nodes compete with those of a head. There are as many slots as the largest tree needs, so where
        nothing is found, nothing is verified in vain. A batch without requests, as dry runs have it, gets roots in
        as many slots as the largest budget.
        """

    def finished(self, rid: str) -> None:
        """A request of that id has ended."""

    def clear(self) -> None:
        """Forget all that is kept of requests that have ended."""

    def report(self) -> dict[str, Any]:
        """Plain values for `/server_info`: memory, and what became of drafts."""


class DrafterFactory(Protocol):
    """What a name in the registry stands for; usually the drafter's class."""

    def __call__(
        self,
        *,
        head: AnyHead | NoHead,
        width: int,  # candidates a depth
        depth: int,  # depths that a proposal covers, less than the head's block_size
        server_args: Any,
        gpu_id: int,
        nccl_port: int,
        target_worker: Any,  # owns slots, request table, embedding and lm_head, which the drafter shares
        attention_backend: str,
    ) -> ServedDrafter: ...
