"""The shape of a draft head, as plain frozen data."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, model_validator


class HeadConfig(BaseModel):
    """Everything that fixes a head's tensors and its forward pass.

    ``target_layer_ids`` are tap ids: tap ``l`` is the output of the target's decoder layer ``l``, i.e. the
    residual stream after that layer. Their order is the order of concatenation and therefore matters.
    ``block_size`` counts the anchor. ``causal`` False is the bidirectional block of DFlash.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    vocab_size: int
    block_size: int
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    causal: bool
    num_target_layers: int
    max_position_embeddings: int

    @model_validator(mode="after")
    def _consistent(self) -> HeadConfig:
        if self.block_size < 2:
            raise ValueError(f"block_size is {self.block_size}, but a block holds the anchor and >= 1 mask")
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads cannot share {self.kv_heads} key/value heads evenly")
        if self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}, but rotary embedding needs an even one")
        if not self.target_layer_ids:
            raise ValueError("target_layer_ids is empty: the head would see nothing of the context")
        outside = [tap for tap in self.target_layer_ids if not 0 <= tap < self.num_target_layers]
        if outside:
            raise ValueError(
                f"target_layer_ids {outside} out of range: target has {self.num_target_layers} layers"
            )
        if not 0 <= self.mask_token_id < self.vocab_size:
            raise ValueError(
                f"mask_token_id {self.mask_token_id} outside the vocabulary of {self.vocab_size}"
            )
        return self

    @property
    def tap_width(self) -> int:
        """Features a token brings: all taps side by side, K*H."""
        return len(self.target_layer_ids) * self.hidden_size
