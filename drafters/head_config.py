"""The shapes of draft heads, as plain frozen data."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

EAGLE_TAPS = 3  # features of an EAGLE-3 head whose config lists no layers
FRONTIER = 8  # nodes of a depth that an autoregressive or spec-block head drafts from: EAGLE's usual top-k


class Head(BaseModel):
    """What all heads have in common.

    Tap ``l`` is the output of the target's decoder layer ``l``, i.e. the residual stream after that layer. The
    order of taps is the order of concatenation and therefore matters. ``block_size`` is the depth that a head
    was trained for, and one for the anchor.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    vocab_size: int
    block_size: int
    max_position_embeddings: int

    @model_validator(mode="after")
    def _consistent(self) -> Head:
        if self.block_size < 2:
            raise ValueError(f"block_size is {self.block_size}, but a block holds the anchor and >= 1 draft")
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads cannot share {self.kv_heads} key/value heads evenly")
        if self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}, but rotary embedding needs an even one")
        return self

    @property
    def drafter(self) -> str:
        """The name, in the registry, of the drafter that this head was trained for."""
        raise NotImplementedError

    @property
    def conditioning(self) -> Literal["marginal", "path"]:
        """Whether what is drafted below a node depends on the drafted tokens above it: "path" if so."""
        raise NotImplementedError

    @property
    def tap_width(self) -> int:
        """Features a token brings: all taps side by side, K*H."""
        raise NotImplementedError

    @property
    def cached_layers(self) -> int:
        """What a token's context takes in the drafter's cache, in layers of keys and values."""
        raise NotImplementedError

    def taps(self, target_layers: int) -> tuple[int, ...]:
        """The tap ids in a target of so many layers."""
        raise NotImplementedError

    def slots(self, depth: int) -> int:
        """Cache slots that drafting ``depth`` depths writes to, the anchor's included."""
        raise NotImplementedError

    def rows(self, depth: int) -> int:
        """Rows of a request in one draft forward, at most."""
        return self.slots(depth)


class CorrectorConfig(BaseModel):
    """What corrects a block head's rows by the path that leads to them; see `path_corrector`.

    ``gru`` remembers the path in a state of ``state_size`` numbers, ``mlp`` sees its last token alone, so it has
    none. ``domino`` is a published Domino head's, a GRU whose last layer is a table over the vocabulary, and
    ``treeflash`` a published TreeFlash head's, an MLP in front of the final norm, whose rank is the hidden size.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["gru", "mlp", "domino", "treeflash"]
    rank: int = Field(ge=1)  # numbers in which a node and a candidate meet
    state_size: int | None = Field(None, ge=1)
    candidates: int = Field(ge=1)  # of a row, the likeliest, whose logits are corrected
    skip: int = Field(1, ge=0)  # depths from the top that are left as the block drafts them

    @model_validator(mode="after")
    def _of_its_kind(self) -> CorrectorConfig:
        if (self.state_size is None) != (self.kind in ("mlp", "treeflash")):
            raise ValueError("gru and domino correctors need a state_size, and the others have none")
        return self


class LayeredConfig(Head):
    """What heads of several decoder layers over ``[token, MASK, ...]`` have in common."""

    layers: int
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    num_target_layers: int

    @model_validator(mode="after")
    def _reads_the_target(self) -> LayeredConfig:
        if not self.target_layer_ids:
            raise ValueError("target_layer_ids is empty: the head would see nothing of the context")
        check_taps(self.target_layer_ids, self.num_target_layers)
        if not 0 <= self.mask_token_id < self.vocab_size:
            raise ValueError(
                f"mask_token_id {self.mask_token_id} outside the vocabulary of {self.vocab_size}"
            )
        return self

    @property
    def tap_width(self) -> int:
        return len(self.target_layer_ids) * self.hidden_size

    @property
    def cached_layers(self) -> int:
        return self.layers

    def taps(self, target_layers: int) -> tuple[int, ...]:
        return self.target_layer_ids


class HeadConfig(LayeredConfig):
    """A DFlash or JetSpec head: one forward over ``[anchor, MASK, ...]``.

    ``causal`` False is the bidirectional block of DFlash, which is always drafted whole. ``shifted``: the output
    of a slot predicts the token behind it, not the one at it, as Domino heads are published.
    """

    causal: bool
    corrector: CorrectorConfig | None = None
    shifted: bool = False

    @model_validator(mode="after")
    def _fits(self) -> HeadConfig:
        if self.corrector is not None and self.corrector.skip > self.block_size - 2:
            raise ValueError(
                f"the corrector skips {self.corrector.skip} depths, but there are only {self.block_size - 1}"
            )
        return self

    @property
    def drafter(self) -> str:
        return "causal_parallel" if self.causal else "diffusion"

    @property
    def conditioning(self) -> Literal["marginal", "path"]:
        return "marginal" if self.corrector is None else "path"

    def slots(self, depth: int) -> int:
        return depth + 1 if self.causal else self.block_size


class AutoregressiveConfig(Head):
    """An EAGLE-3 head: one decoder layer, run once a depth.

    ``draft_vocab_size``: tokens that the head's own lm_head can draft; None if it uses the target's lm_head.
    ``target_layer_ids`` None: a low, a middle and a high layer, as EAGLE-3 takes them. ``num_target_layers``:
    of the target that the head was trained for, None if its config doesn't say.
    """

    draft_vocab_size: int | None = None
    target_layer_ids: tuple[int, ...] | None = None
    num_target_layers: int | None = None

    @model_validator(mode="after")
    def _fits(self) -> AutoregressiveConfig:
        if self.target_layer_ids == ():
            raise ValueError("eagle_aux_hidden_state_layer_ids is empty: the head would see no context")
        if self.num_target_layers is not None:
            self.taps(self.num_target_layers)
        if self.draft_vocab_size is not None and not 1 <= self.draft_vocab_size <= self.vocab_size:
            raise ValueError(
                f"draft_vocab_size {self.draft_vocab_size} outside 1..{self.vocab_size}, the target's vocabulary"
            )
        return self

    @property
    def drafter(self) -> str:
        return "autoregressive"

    @property
    def conditioning(self) -> Literal["marginal", "path"]:
        return "path"

    @property
    def tap_width(self) -> int:
        taps = EAGLE_TAPS if self.target_layer_ids is None else len(self.target_layer_ids)
        return taps * self.hidden_size

    @property
    def cached_layers(self) -> int:
        """Its one layer, and the fused feature, H numbers a token."""
        return 1 + -(-self.hidden_size // (2 * self.kv_heads * self.head_dim))

    @property
    def maps_vocabulary(self) -> bool:
        """Whether draft tokens have ids of their own."""
        return self.draft_vocab_size not in (None, self.vocab_size)

    def taps(self, target_layers: int) -> tuple[int, ...]:
        """Raises ValueError if the target has no such layers."""
        taps = self.target_layer_ids
        if taps is None:  # SGLang's and EAGLE's default: the inputs of layers 2, L/2 and L-3
            taps = (1, target_layers // 2 - 1, target_layers - 4)
        check_taps(taps, target_layers)
        return taps

    def slots(self, depth: int) -> int:
        return 1 + (depth - 1) * FRONTIER

    def rows(self, depth: int) -> int:
        return FRONTIER


class SpecBlockConfig(LayeredConfig):
    """A SpecBlock head: each forward drafts ``positions`` depths below the nodes that it starts from.

    ``ranks``: at how many ranks of a row's candidates the rank head looks for the target's token.
    """

    positions: int = Field(ge=1)
    ranks: int = Field(ge=1)

    @model_validator(mode="after")
    def _fits(self) -> SpecBlockConfig:
        if self.positions > self.block_size - 1:
            raise ValueError(
                f"positions is {self.positions}, but the head is {self.block_size - 1} depths deep"
            )
        if self.ranks >= self.vocab_size:
            raise ValueError(f"ranks is {self.ranks}, but there are only {self.vocab_size} tokens")
        return self

    @property
    def drafter(self) -> str:
        return "spec_block"

    @property
    def conditioning(self) -> Literal["marginal", "path"]:
        return "path"

    def forwards(self, depth: int) -> int:
        """How many forwards it takes to draft so deep."""
        return -(-depth // self.positions)

    def slots(self, depth: int) -> int:
        """Of one forward: no block looks at an earlier one's keys, so all forwards take the same slots."""
        return (FRONTIER if depth > self.positions else 1) * (self.positions + 1)


AnyHead = HeadConfig | AutoregressiveConfig | SpecBlockConfig


def check_taps(taps: tuple[int, ...], target_layers: int) -> None:
    """Raise ValueError for a tap that a target of so many layers doesn't have."""
    outside = [tap for tap in taps if not 0 <= tap < target_layers]
    if outside:
        raise ValueError(f"target_layer_ids {outside} out of range: target has {target_layers} layers")
