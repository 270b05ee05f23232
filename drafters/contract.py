"""What a drafter is (data), what a served one must do, and how one is made (protocols)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from torch import Tensor

from jetspec_sglang.tree import DraftProposal

from .head_config import HeadConfig


@dataclass(frozen=True)
class DrafterSpec:
    """Facts about a drafter that the rest of the system may rely on.

    ``conditioning`` tells the truth about the proposal's rows: "marginal" is one row a depth, shared by all
    nodes of that depth (released JetSpec and DFlash heads: the head never sees a drafted token); "path" is
    a row that depends on the drafted tokens above it.
    """

    name: str
    conditioning: Literal["marginal", "path"]
    causal: bool  # a block may be cut or extended without changing its first rows
    block_length: int  # slots a draft forward runs, anchor included
    target_layer_ids: tuple[int, ...]
    mask_token_id: int | None
    forwards_per_round: int

    def __post_init__(self) -> None:
        if self.block_length < 2:
            raise ValueError(
                f"block_length is {self.block_length}, but a block holds the anchor and >= 1 draft"
            )
        if self.forwards_per_round < 1:
            raise ValueError(
                f"forwards_per_round is {self.forwards_per_round}, but drafting takes at least one"
            )

    @classmethod
    def of_head(cls, config: HeadConfig, block_length: int | None = None) -> DrafterSpec:
        """Spec of a one-pass head, run at its trained block length unless told otherwise."""
        return cls(
            name="causal_parallel",
            conditioning="marginal",
            causal=config.causal,
            block_length=block_length or config.block_size,
            target_layer_ids=config.target_layer_ids,
            mask_token_id=config.mask_token_id,
            forwards_per_round=1,
        )


@runtime_checkable
class ServedDrafter(Protocol):
    """A drafter inside a serving engine, whose own objects (Any) pass through untouched by this contract.

    The context K/V of committed tokens is addressed by the target's slot ids, so that prefix caching,
    retraction and abort need no state of the drafter's own.
    """

    spec: DrafterSpec
    worker: Any  # SGLang's worker of the drafter: memory pool, attention backend and graphs are set up by it
    runner: Any  # its model runner; weight updates go there
    block_length: int  # most slots that `propose` needs, anchor included: `spec.block_length`

    def append_context(self, taps: Tensor, slots: Tensor, positions: Tensor) -> None:
        """Take in committed tokens: target features [T, K*H], slots [T] and absolute positions [T], int64."""

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

        L is ``block_length``, or, for a causal block, any length from 2 up to it: a proposal of L - 1 depths is
        wanted. ``entropy``: the proposal must carry the rows' entropy. ``candidates``: how many of them a row
        must have, as far as the vocabulary goes; the factory's ``width`` if None.
        """


class DrafterFactory(Protocol):
    """What a name in the registry stands for; usually the drafter's class."""

    def __call__(
        self,
        *,
        head: HeadConfig,
        width: int,  # candidates a depth
        depth: int,  # depths that a proposal covers, less than the head's block_size
        server_args: Any,
        gpu_id: int,
        nccl_port: int,
        target_worker: Any,  # owns slots, request table, embedding and lm_head, which the drafter shares
        attention_backend: str,
    ) -> ServedDrafter: ...
