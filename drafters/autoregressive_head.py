"""The autoregressive (EAGLE-3) draft head in plain torch.

This module is both the model that is trained and the oracle for the served one. Architecture and tensor names
are those of published EAGLE-3 heads. One decoder layer is run once a depth over *rows*, each a pair of what is
known of a token and the token after it:

    context row i:  f_i = fc(taps of token i), with the embedding of token i+1      i = 0 .. a-2
    root row:       f_{a-1}, with the embedding of the anchor, which is token a
    drafted row:    the layer's own output at the row above, with the embedding of the drafted token

A row's output predicts the token after its embedded one, and takes the place of f below it. So the last context
row is not known before the token behind it is, and the row of token 0 doesn't exist. A row's position, as rotary
embedding counts it, is that of f: one less than its token's.

The embedding is always the target's (published heads may bring a copy), the lm_head the head's own over a part
of the vocabulary, or the target's.

Letters in shapes: b batch, n tokens, A anchors, R rows, T rows before them, H hidden, d head_dim.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .causal_head import MLP, Rope, grouped_attention, rotate
from .head_config import AutoregressiveConfig
from .rms_norm import RMSNorm

KV = tuple[Tensor, Tensor]  # keys (rotated) and values of rows, [b, kv_heads, rows, d]


class Attention(nn.Module):
    """Queries, keys and values from embedding and feature side by side, hence inputs of 2H."""

    def __init__(self, config: AutoregressiveConfig) -> None:
        super().__init__()
        hidden, self.d = config.hidden_size, config.head_dim
        self.q_proj = nn.Linear(2 * hidden, config.heads * self.d, bias=False)
        self.k_proj = nn.Linear(2 * hidden, config.kv_heads * self.d, bias=False)
        self.v_proj = nn.Linear(2 * hidden, config.kv_heads * self.d, bias=False)
        self.o_proj = nn.Linear(config.heads * self.d, hidden, bias=False)

    def split(self, x: Tensor) -> Tensor:
        """[b, n, heads*d] -> [b, heads, n, d]."""
        return x.unflatten(-1, (-1, self.d)).transpose(1, 2)

    def kv(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> KV:
        v = self.split(self.v_proj(x))
        return rotate(self.split(self.k_proj(x)), rope).to(v.dtype), v

    def query(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        q = self.split(self.q_proj(x))
        return rotate(q, rope).to(q.dtype)


class Layer(nn.Module):
    def __init__(self, config: AutoregressiveConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)  # of the embedding
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)  # of the feature
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def paired(self, features: Tensor, embeddings: Tensor) -> Tensor:
        return torch.cat((self.input_layernorm(embeddings), self.hidden_norm(features)), dim=-1)

    def finish(self, features: Tensor, attended: Tensor) -> Tensor:
        """attended [b, heads, R, d] -> [b, R, H]; the residual stream is the feature's."""
        x = features + self.self_attn.o_proj(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.post_attention_layernorm(x))


class AutoregressiveHead(nn.Module):
    """`state_dict()` is what a published checkpoint holds: midlayer.*, fc, norm, and, for a vocabulary of its
    own, lm_head with the maps d2t and t2d."""

    lm_head: nn.Linear | None

    def __init__(self, config: AutoregressiveConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(config.tap_width, config.hidden_size, bias=False)
        self.midlayer = Layer(config)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rope = Rope(config.head_dim, config.rope_theta)
        own = config.draft_vocab_size
        self.lm_head = None if own is None else nn.Linear(config.hidden_size, own, bias=False)
        if config.maps_vocabulary:
            assert own is not None
            self.set_draft_vocabulary(torch.arange(own))

    def set_draft_vocabulary(self, tokens: Tensor) -> None:
        """Let the draft vocabulary be these target tokens [draft_vocab_size] int64, ascending and distinct.

        On disk it is d2t, what to add to a draft id, and t2d, which target tokens are in it.
        """
        allowed = torch.zeros(self.config.vocab_size, dtype=torch.bool)
        allowed[tokens] = True
        self.register_buffer("d2t", tokens - torch.arange(len(tokens)))
        self.register_buffer("t2d", allowed)

    def fuse(self, taps: Tensor) -> Tensor:
        """Features f [b, n, H] of tokens with taps [b, n, K*H]."""
        return self.fc(taps)

    def context_kv(self, features: Tensor, embeddings: Tensor, positions: Tensor) -> KV:
        """Keys and values of rows, which may be appended to those of earlier ones.

        features [b, n, H]: f of each row; embeddings [b, n, H]: of the token after it; positions [b, n] int: f's.
        """
        return self.midlayer.self_attn.kv(self.midlayer.paired(features, embeddings), self.rope(positions))

    def forward(
        self, features: Tensor, embeddings: Tensor, positions: Tensor, before: KV, mask: Tensor
    ) -> tuple[Tensor, KV]:
        """Run rows behind `before`, the T rows that came earlier -> outputs [b, R, H], keys and values of all.

        mask [b or 1, R, T + R] bool, True = may attend. An output is the feature of the row below; `logits` of
        it predicts a token.
        """
        x, rope = self.midlayer.paired(features, embeddings), self.rope(positions)
        attention = self.midlayer.self_attn
        k, v = (torch.cat((old, new), dim=2) for old, new in zip(before, attention.kv(x, rope), strict=True))
        attended = grouped_attention(attention.query(x, rope), k, v, additive(mask, v.dtype)[:, None])
        return self.midlayer.finish(features, attended), (k, v)

    def unroll(self, taps: Tensor, embeddings: Tensor, anchors: Tensor, depth: int) -> Tensor:
        """What the head would say along the true text, all anchors at once: [b, A, depth, H], `forward`'s outputs.

        taps [b, n, K*H] and embeddings [b, n, H] of whole texts; anchors [b, A] int64 >= 1, positions in them.
        Entry k - 1 of anchor a predicts token a + k from the features of the tokens before a, and the tokens up
        to a + k - 1. Its own earlier outputs take the place of features, as in drafting. Padding behind a text
        is not looked at; entries that would read past the end are of no use.
        """
        features, last = self.fuse(taps), embeddings.shape[1] - 1
        rows = torch.arange(last, device=anchors.device)
        context = self.context_kv(features[:, :-1], embeddings[:, 1:], rows[None])
        bias = additive(rows < anchors[..., None] - 1, features.dtype)
        hidden, drafted, outputs = _take(features, anchors - 1), [], []
        for step in range(depth):
            row = _take(embeddings, (anchors + step).clamp(max=last))
            x, rope = self.midlayer.paired(hidden, row), self.rope(anchors - 1 + step)
            attention = self.midlayer.self_attn
            drafted.append(attention.kv(x, rope))
            attended = _attend_own(attention.query(x, rope), context, drafted, bias)
            hidden = self.midlayer.finish(hidden, attended)
            outputs.append(hidden)
        return torch.stack(outputs, dim=2)

    def logits(self, outputs: Tensor, target_lm_head: Tensor) -> Tensor:
        """[..., H] -> [..., draft vocabulary]; target_lm_head [V, H] is used by heads without one of their own."""
        weight = target_lm_head if self.lm_head is None else self.lm_head.weight
        return self.norm(outputs) @ weight.T

    def token_ids(self, draft_ids: Tensor) -> Tensor:
        """Target ids of draft ids, int64."""
        return draft_ids + self.get_buffer("d2t")[draft_ids] if self.config.maps_vocabulary else draft_ids


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    bias = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return bias.masked_fill_(~mask, torch.finfo(dtype).min)


def _take(values: Tensor, at: Tensor) -> Tensor:
    """Rows `at` [b, A] of values [b, n, H] -> [b, A, H]."""
    return values.gather(1, at[..., None].expand(-1, -1, values.shape[-1]))


def _attend_own(q: Tensor, context: KV, drafted: list[KV], bias: Tensor) -> Tensor:
    """Attention of anchors' rows over a shared context and, each, over its own drafted rows.

    q [b, heads, A, d]; bias [b, A, T]; each entry of `drafted` is one row an anchor -> [b, heads, A, d].
    """
    kv_heads = context[0].shape[1]
    q = (q * q.shape[-1] ** -0.5).unflatten(1, (kv_heads, -1))  # [b, kv_heads, group, A, d]
    shared = q @ context[0][:, :, None].mT + bias[:, None, None]
    own = torch.stack([(q * k[:, :, None]).sum(-1) for k, _ in drafted], dim=-1)
    weights = torch.cat((shared, own), dim=-1).softmax(dim=-1, dtype=q.dtype)
    split = shared.shape[-1]
    out = weights[..., :split] @ context[1][:, :, None]
    for step, (_, v) in enumerate(drafted):
        out = out + weights[..., split + step, None] * v[:, :, None]
    return out.flatten(1, 2)
