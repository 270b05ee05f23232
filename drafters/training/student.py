"""The head that is trained, of any drafter: how it is made, and its output at the labels of a batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..autoregressive_head import AutoregressiveHead
from ..causal_head import CausalParallelHead
from ..checkpoint import HeadError, load_head_tensors, read_head_config
from ..head_config import AnyHead, AutoregressiveConfig, HeadConfig, SpecBlockConfig
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
        assert shape.mask_token_id is not None  # HeadShape asks for it
        causal = shape.drafter == "causal_parallel"
        return HeadConfig(
            **common,
            layers=shape.layers,
            mask_token_id=shape.mask_token_id,
            causal=causal,
            corrector=shape.corrector,
        )
    except ValueError as error:
        raise TrainError(f"no such head for this target: {error}") from error


DraftHead = CausalParallelHead | AutoregressiveHead


def make_head(config: AnyHead) -> DraftHead:
    """Raises HeadError for a head that can be read, but neither trained nor compared yet."""
    if isinstance(config, SpecBlockConfig):
        raise HeadError("spec_block heads can only be read so far; take a head of another drafter")
    return (
        AutoregressiveHead(config) if isinstance(config, AutoregressiveConfig) else CausalParallelHead(config)
    )


def warm_start(head: DraftHead, config: AnyHead, place: str) -> None:
    """Fill ``head`` from a published one. Its block size and causality may differ, and it may lack the path corrector,
    nothing else of its shape."""
    try:
        theirs, tensors = read_head_config(place), load_head_tensors(place)
    except HeadError as error:
        raise TrainError(f"fit.start: {error}") from error
    free = {"block_size", "causal", "max_position_embeddings"}
    bare = isinstance(theirs, HeadConfig) and theirs.corrector is None
    if bare:
        free.add("corrector")
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
        return self._block_hidden(self.head, batch).flatten(0, 1)[batch.rows]

    def _block_hidden(self, head: CausalParallelHead, batch: Batch) -> Tensor:
        slots = batch.slots
        assert slots is not None  # `collate` makes them for every block head
        context = batch.taps.shape[1]
        positions = torch.arange(context, device=batch.taps.device).expand(batch.taps.shape[:2])
        kv = head.context_kv(batch.taps.to(head.fc.weight.dtype), positions)
        embeddings = self.embedding[slots.ids]
        if embeddings.device.type == "cuda":
            return flex_block_hidden(head, embeddings, slots, kv, compiled=True)
        return head.block_hidden(embeddings, slots.positions, kv, slots.mask(context, head.config.causal))
