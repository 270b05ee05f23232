"""The one-pass draft head in plain torch, causal parallel or diffusion (bidirectional).

This module is both the model that is trained and the oracle for the served one. Architecture and tensor
names are those of published DFlash/JetSpec heads; the two kinds differ in the block's mask alone. The head owns
neither embedding nor lm_head: both are the target's.

    context:  g = hidden_norm(fc(taps))              one fused feature per committed token
              k, v = W_k g, W_v g per layer          no input_layernorm on this path, context never queries
    block:    x = embed([anchor, MASK, MASK, ...])   ordinary decoder layers; keys = context + block
    labels:   in place, the output of slot j predicts the token AT slot j; slot 0 (the anchor) is not used

``causal`` hides from slot j the slots after it, so its output does not depend on the block's length.

Letters in shapes: b batch, T context tokens, S slots of one or several blocks, H hidden, d head_dim.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .head_config import Head, HeadConfig, LayeredConfig
from .path_corrector import make_corrector
from .rms_norm import RMSNorm

# Keys (normalised, rotated) and values of each layer, [b, kv_heads, T, d].
ContextKV = list[tuple[Tensor, Tensor]]


def block_mask(context_len: int, slots: int, causal: bool, device: torch.device | None = None) -> Tensor:
    """[slots, context_len + slots] bool, True = may attend: the whole context, and the block or its past."""
    allowed = torch.ones(slots, context_len + slots, dtype=torch.bool, device=device)
    return allowed.tril(diagonal=context_len) if causal else allowed


class Rope(nn.Module):
    """NeoX (rotate-half) rotary embedding at absolute positions; angles are always float32."""

    def __init__(self, head_dim: int, theta: float) -> None:
        super().__init__()
        self.head_dim, self.theta = head_dim, theta

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions [b, n] int -> cos, sin [b, 1, n, d] float32."""
        pairs = torch.arange(0, self.head_dim, 2, device=positions.device, dtype=torch.float32)
        angles = positions[:, None, :, None].float() * self.theta ** (-pairs / self.head_dim)
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos(), angles.sin()


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = rope
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


def grouped_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(d) + bias) v, the query heads of a group sharing one key/value head.

    q [b, heads, S, d]; k, v [b, kv_heads, n, d]; bias [b or 1, 1, S, n] -> [b, heads, S, d]. Written out
    rather than ``scaled_dot_product_attention``: a group's queries are stacked into one matrix, so keys are
    not repeated, and the backward pass under an arbitrary mask is four times as fast on a CPU in bfloat16.
    """
    kv_heads, slots = k.shape[1], q.shape[2]
    stacked = (q * q.shape[-1] ** -0.5).unflatten(1, (kv_heads, -1)).flatten(2, 3)
    scores = (stacked @ k.mT).unflatten(2, (-1, slots)) + bias[:, :, None]
    out = scores.softmax(dim=-1, dtype=q.dtype).flatten(2, 3) @ v
    return out.unflatten(2, (-1, slots)).flatten(1, 2)


class Attention(nn.Module):
    def __init__(self, config: Head) -> None:
        super().__init__()
        hidden, self.d = config.hidden_size, config.head_dim
        self.q_proj = nn.Linear(hidden, config.heads * self.d, bias=False)
        self.k_proj = nn.Linear(hidden, config.kv_heads * self.d, bias=False)
        self.v_proj = nn.Linear(hidden, config.kv_heads * self.d, bias=False)
        self.o_proj = nn.Linear(config.heads * self.d, hidden, bias=False)
        self.q_norm = RMSNorm(self.d, config.rms_norm_eps)
        self.k_norm = RMSNorm(self.d, config.rms_norm_eps)

    def split(self, x: Tensor) -> Tensor:
        """[b, n, heads*d] -> [b, heads, n, d]."""
        return x.unflatten(-1, (-1, self.d)).transpose(1, 2)

    def kv(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """x [b, n, H] -> k (normalised per head, then rotated) and v, both [b, kv_heads, n, d]."""
        v = self.split(self.v_proj(x))
        k = rotate(self.k_norm(self.split(self.k_proj(x))), rope)
        return k.to(v.dtype), v

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor], context: tuple[Tensor, Tensor], bias: Tensor
    ) -> Tensor:
        k, v = self.kv(x, rope)
        q = rotate(self.q_norm(self.split(self.q_proj(x))), rope).to(v.dtype)
        k, v = torch.cat((context[0], k), dim=2), torch.cat((context[1], v), dim=2)
        return self.o_proj(grouped_attention(q, k, v, bias).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, config: Head) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config: Head) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor], context: tuple[Tensor, Tensor], bias: Tensor
    ) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rope, context, bias)
        return x + self.mlp(self.post_attention_layernorm(x))


class LayeredHead(nn.Module):
    """Decoder layers behind a context of fused taps: what causal, diffusion and spec-block heads share."""

    def __init__(self, config: LayeredConfig) -> None:
        super().__init__()
        self.fc = nn.Linear(config.tap_width, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        # A ModuleList, whose type doesn't say of what.
        self.layers = cast(list[Layer], nn.ModuleList(Layer(config) for _ in range(config.layers)))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rope = Rope(config.head_dim, config.rope_theta)

    def context_kv(self, taps: Tensor, positions: Tensor) -> ContextKV:
        """Keys and values of committed tokens: taps [b, T, K*H], absolute positions [b, T].

        Row by row, so the result for new tokens may be appended to that of earlier ones.
        """
        fused, rope = self.hidden_norm(self.fc(taps)), self.rope(positions)
        return [layer.self_attn.kv(fused, rope) for layer in self.layers]


class CausalParallelHead(LayeredHead):
    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config)
        self.config = config
        if config.corrector is not None:
            self.path_corrector = make_corrector(config)

    def block_hidden(
        self, embeddings: Tensor, positions: Tensor, context_kv: ContextKV, mask: Tensor
    ) -> Tensor:
        """Final-norm output [b, S, H] of block slots; the logits of slot j are ``lm_head(out[:, j])``."""
        return self.norm(self.block_residual(embeddings, positions, context_kv, mask))

    def block_residual(
        self, embeddings: Tensor, positions: Tensor, context_kv: ContextKV, mask: Tensor
    ) -> Tensor:
        """What the final norm reads, [b, S, H].

        embeddings [b, S, H]: the target's raw embeddings of anchor and masks; positions [b, S] absolute;
        mask [S, T+S] or [b, S, T+S] bool, True = may attend (``block_mask`` for a single block).
        """
        x, rope = embeddings, self.rope(positions)
        dtype = context_kv[0][1].dtype
        bias = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
        bias.masked_fill_(~mask, torch.finfo(dtype).min)
        bias = bias[None, None] if mask.dim() == 2 else bias[:, None]
        for layer, context in zip(self.layers, context_kv, strict=True):
            x = layer(x, rope, context, bias)
        return x

    def drafting(self, rows: Tensor) -> Tensor:
        """Of the rows of whole blocks [..., B, H] those for depths 1, 2, ..., [..., B - 1, H]."""
        return rows[..., :-1, :] if self.config.shifted else rows[..., 1:, :]
