"""The head's forward pass: causality, incremental context, agreement with a naive version."""

import pytest
import torch
import torch.nn.functional as F
from tiny_data import head_config

from jetspec_sglang.drafters.causal_head import CausalParallelHead, block_mask

CONTEXT = 9


def make(causal: bool = True) -> CausalParallelHead:
    torch.manual_seed(1)
    head = CausalParallelHead(head_config(causal=causal))
    for name, p in head.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(p, 0.5, 1.5)
    return head.eval().requires_grad_(False)


def inputs(head: CausalParallelHead, slots: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(2)
    taps = torch.randn(1, CONTEXT, head.config.tap_width, generator=rng)
    mask_embedding = torch.randn(1, 1, head.config.hidden_size, generator=rng)
    anchor = torch.randn(1, 1, head.config.hidden_size, generator=rng)
    return taps, torch.cat((anchor, mask_embedding.expand(1, slots - 1, -1)), dim=1)


def draft(head: CausalParallelHead, slots: int) -> torch.Tensor:
    taps, embeddings = inputs(head, slots)
    context = head.context_kv(taps, torch.arange(CONTEXT)[None])
    positions = CONTEXT + torch.arange(slots)[None]
    return head.block_hidden(embeddings, positions, context, block_mask(CONTEXT, slots, head.config.causal))


def test_a_causal_slot_does_not_depend_on_the_block_length():
    head = make()
    full = draft(head, 5)
    for slots in range(2, 5):
        torch.testing.assert_close(draft(head, slots), full[:, :slots])


def test_a_bidirectional_slot_does():
    head = make(causal=False)
    assert (draft(head, 3) - draft(head, 5)[:, :3]).abs().max() > 1e-3


def test_context_may_come_piece_by_piece():
    head = make()
    taps, _ = inputs(head, 2)
    positions = torch.arange(CONTEXT)[None]
    whole = head.context_kv(taps, positions)
    pieces = [
        head.context_kv(taps[:, cut], positions[:, cut]) for cut in (slice(0, 4), slice(4, 5), slice(5, None))
    ]
    for layer, (k, v) in enumerate(whole):
        torch.testing.assert_close(torch.cat([piece[layer][0] for piece in pieces], dim=2), k)
        torch.testing.assert_close(torch.cat([piece[layer][1] for piece in pieces], dim=2), v)


def test_every_context_token_and_its_position_matter():
    head = make()
    taps, embeddings = inputs(head, 3)
    positions, mask = torch.arange(CONTEXT)[None], block_mask(CONTEXT, 3, True)

    def run(taps: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return head.block_hidden(
            embeddings, CONTEXT + torch.arange(3)[None], head.context_kv(taps, positions), mask
        )

    out = run(taps, positions)
    for t in range(CONTEXT):
        other = taps.clone()
        other[0, t] += 1
        assert (run(other, positions) - out).abs().max() > 1e-5
    torch.testing.assert_close(run(taps, positions - 0), out)
    assert (run(taps, positions - 1) - out).abs().max() > 1e-5


@pytest.mark.parametrize("causal", [True, False])
def test_against_a_naive_forward_in_float64(causal):
    """The definition once more, one query at a time, with plain indexing."""
    head = make(causal)
    config, slots = head.config, 4
    taps, embeddings = inputs(head, slots)
    w = {name: tensor.double() for name, tensor in head.state_dict().items()}

    def norm(x, weight):
        return x / (x.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps).sqrt() * weight

    def rotated(x, position):
        half = config.head_dim // 2
        angle = position * config.rope_theta ** (-2 * torch.arange(half).double() / config.head_dim)
        low, high = x[..., :half], x[..., half:]
        return torch.cat(
            (low * angle.cos() - high * angle.sin(), high * angle.cos() + low * angle.sin()), dim=-1
        )

    g = norm(taps[0].double() @ w["fc.weight"].T, w["hidden_norm.weight"])
    x = embeddings[0].double()
    for i in range(config.layers):
        p = f"layers.{i}.self_attn."
        h = norm(x, w[f"layers.{i}.input_layernorm.weight"])
        source = torch.cat((g, h))
        keys = (source @ w[p + "k_proj.weight"].T).view(-1, config.kv_heads, config.head_dim)
        values = (source @ w[p + "v_proj.weight"].T).view(-1, config.kv_heads, config.head_dim)
        keys = torch.stack([rotated(norm(k, w[p + "k_norm.weight"]), t) for t, k in enumerate(keys)])
        queries = (h @ w[p + "q_proj.weight"].T).view(slots, config.heads, config.head_dim)
        rows = []
        for j in range(slots):
            q = rotated(norm(queries[j], w[p + "q_norm.weight"]), CONTEXT + j)
            seen = CONTEXT + j + 1 if causal else len(keys)
            heads = []
            for n in range(config.heads):
                shared = n // (config.heads // config.kv_heads)
                score = keys[:seen, shared] @ q[n] / config.head_dim**0.5
                heads.append(score.softmax(0) @ values[:seen, shared])
            rows.append(torch.cat(heads))
        x = x + torch.stack(rows) @ w[p + "o_proj.weight"].T
        h, m = norm(x, w[f"layers.{i}.post_attention_layernorm.weight"]), f"layers.{i}.mlp."
        gated = F.silu(h @ w[m + "gate_proj.weight"].T) * (h @ w[m + "up_proj.weight"].T)
        x = x + gated @ w[m + "down_proj.weight"].T
    expected = norm(x, w["norm.weight"])
    torch.testing.assert_close(draft(head, slots)[0].double(), expected, rtol=1e-5, atol=1e-5)
