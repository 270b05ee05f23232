"""The head that is trained, of any drafter: how it is made, and its output at the labels of a batch."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from ..autoregressive_head import AutoregressiveHead
from ..causal_head import CausalParallelHead, ContextKV, LayeredHead
from ..checkpoint import HeadError, load_head_tensors, read_head_config
from ..head_config import AnyHead, AutoregressiveConfig, HeadConfig, SpecBlockConfig
from ..spec_block_head import SpecBlockHead
from .batch import Batch
from .config import HeadShape
from .errors import TrainError
from .flex import flex_block_hidden


def head_config(shape: HeadShape, target_config: Any, target_layer_ids: tuple[int, ...]) -> AnyHead:
    """Sizes of the target, freedom of ``shape``. TrainError if the two don't fit."""
    c = target_config
    common = {
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "heads": c.num_attention_heads,
        "kv_heads": c.num_key_value_heads,
        "head_dim": getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads,
        "rms_norm_eps": c.rms_norm_eps,
        "rope_theta": c.rope_parameters["rope_theta"],
        "vocab_size": c.vocab_size,
        "block_size": shape.block_size,
        "max_position_embeddings": c.max_position_embeddings,
        "target_layer_ids": target_layer_ids,
        "num_target_layers": c.num_hidden_layers,
    }
    try:
        if shape.drafter == "autoregressive":
            return AutoregressiveConfig(**common)
        common |= {"layers": shape.layers, "mask_token_id": shape.mask_token_id}
        if shape.drafter == "spec_block":
            assert shape.positions is not None  # HeadShape asks for both
            assert shape.ranks is not None
            return SpecBlockConfig(**common, positions=shape.positions, ranks=shape.ranks)
        return HeadConfig(**common, causal=shape.drafter == "causal_parallel", corrector=shape.corrector)
    except ValidationError as error:
        faults = "; ".join(fault["msg"].removeprefix("Value error, ") for fault in error.errors())
        raise TrainError(f"no such head for this target: {faults}") from error


DraftHead = CausalParallelHead | AutoregressiveHead | SpecBlockHead


def make_head(config: AnyHead) -> DraftHead:
    """A head that is to be filled; what a spec-block head has beside a causal one adds nothing yet."""
    if isinstance(config, AutoregressiveConfig):
        return AutoregressiveHead(config)
    if isinstance(config, HeadConfig):
        return CausalParallelHead(config)
    head = SpecBlockHead(config)
    for added in (*(shift.proj for shift in head.shifts), head.rank_head):
        nn.init.zeros_(added.weight)
    return head


def warm_start(head: DraftHead, config: AnyHead, place: str) -> None:
    """Fill ``head`` from a published one. Its block size, causality and positions may differ, and it may lack the path
    corrector, or a spec-block head's shifts and rank head, nothing else of its shape."""
    try:
        theirs, tensors = read_head_config(place), load_head_tensors(place)
    except HeadError as error:
        raise TrainError(f"fit.start: {error}") from error
    free = {"block_size", "causal", "max_position_embeddings", "positions"}
    bare = isinstance(theirs, HeadConfig) and theirs.corrector is None
    if bare:
        free.add("corrector")
    if bare and isinstance(config, SpecBlockConfig):
        free |= {"ranks", "shifted"}
    mine, found = config.model_dump(exclude=free), theirs.model_dump(exclude=free)
    differ = [key for key in mine.keys() | found.keys() if mine.get(key) != found.get(key)]
    if differ:
        raise TrainError(
            f"fit.start: the head in {place} is another one: "
            + ", ".join(f"{key} {found.get(key)} instead of {mine.get(key)}" for key in sorted(differ))
        )
    own = head.state_dict() if bare else {}
    head.load_state_dict({**own, **{name: tensor.float() for name, tensor in tensors.items()}})


class Student(nn.Module):
    """A head and the target's embedding, which it does not own; `forward` is what is compiled and distributed."""

    head: DraftHead

    def __init__(self, head: DraftHead, embedding: Tensor) -> None:
        super().__init__()
        self.head = head
        self._embedding = [embedding]  # [V, H]; in a list: frozen, and not part of any checkpoint

    @property
    def embedding(self) -> Tensor:
        return self._embedding[0]

    def forward(self, batch: Batch) -> Tensor:
        return self.hidden(batch)

    def hidden(self, batch: Batch) -> Tensor:
        """Rows [R, H] of the batch's labels; times lm_head they are logits."""
        if isinstance(self.head, AutoregressiveHead):
            depth = self.head.config.block_size - 1
            outputs = self.head.unroll(
                batch.taps.to(self.head.fc.weight.dtype), self.embedding[batch.tokens], batch.anchors, depth
            )
            return self.head.norm(outputs.flatten(0, 2)[batch.rows])
        if isinstance(self.head, SpecBlockHead):
            return self._going_on(self.head, batch)
        return self._block_hidden(self.head, batch).flatten(0, 1)[batch.rows]

    def _going_on(self, head: SpecBlockHead, batch: Batch) -> Tensor:
        kv = self._context_kv(head, batch)
        outputs: list[Tensor] = []  # of each forward, [b*S, H]
        for forward in batch.forwards:
            slots, starts = forward.slots, forward.starts
            embeddings = self.embedding[slots.ids]
            first = torch.zeros(slots.ids.numel(), dtype=torch.bool, device=starts.device)
            first = first.index_fill(0, starts, True).view_as(slots.ids)
            inherited = torch.zeros_like(embeddings)
            if outputs:
                inherited = inherited.flatten(0, 1).index_copy(0, starts, outputs[-1][forward.above])
                inherited = inherited.view_as(embeddings)
            mask = slots.mask(batch.taps.shape[1], causal=True)
            outputs.append(
                head.residual(embeddings, slots.positions, kv, mask, first, inherited).flatten(0, 1)
            )
        return head.norm(torch.cat(outputs)[batch.rows])

    def _context_kv(self, head: LayeredHead, batch: Batch) -> ContextKV:
        positions = torch.arange(batch.taps.shape[1], device=batch.taps.device).expand(batch.taps.shape[:2])
        return head.context_kv(batch.taps.to(head.fc.weight.dtype), positions)

    def _block_hidden(self, head: CausalParallelHead, batch: Batch) -> Tensor:
        slots, context = batch.slots, batch.taps.shape[1]
        assert slots is not None  # `collate` makes them for every head of one block
        kv = self._context_kv(head, batch)
        embeddings = self.embedding[slots.ids]
        if embeddings.device.type == "cuda":
            return flex_block_hidden(head, embeddings, slots, kv, compiled=True)
        return head.block_hidden(embeddings, slots.positions, kv, slots.mask(context, head.config.causal))
