"""The autoregressive head's forward pass: training along a text, drafting row by row, and a naive version."""

import pytest
import torch
import torch.nn.functional as F
from tiny_heads import eagle_config

from jetspec_sglang.drafters.autoregressive_head import AutoregressiveHead

TOKENS, DEPTH = 12, 4


def make(**changes) -> AutoregressiveHead:
    torch.manual_seed(1)
    head = AutoregressiveHead(eagle_config(**changes))
    for name, p in head.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(p, 0.5, 1.5)
    return head.eval().requires_grad_(False)


def text(head: AutoregressiveHead, batch: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Taps and embeddings of random texts."""
    rng = torch.Generator().manual_seed(2)
    taps = torch.randn(batch, TOKENS, head.config.tap_width, generator=rng)
    return taps, torch.randn(batch, TOKENS, head.config.hidden_size, generator=rng)


def drafted(head: AutoregressiveHead, taps, embeddings, anchor: int) -> torch.Tensor:
    """Outputs [1, DEPTH, H] of a round that drafts the true text, one row at a time."""
    features = head.fuse(taps)
    rows = torch.arange(anchor - 1)[None]
    kv = head.context_kv(features[:, : anchor - 1], embeddings[:, 1:anchor], rows)
    hidden, outputs = features[:, anchor - 1 : anchor], []
    for step in range(DEPTH):
        mask = torch.ones(1, 1, kv[0].shape[2] + 1, dtype=torch.bool)
        row = embeddings[:, anchor + step : anchor + step + 1]
        hidden, kv = head(hidden, row, torch.tensor([[anchor - 1 + step]]), kv, mask)
        outputs.append(hidden)
    return torch.cat(outputs, dim=1)


def test_unrolling_a_text_is_drafting_it():
    head = make()
    taps, embeddings = text(head)
    anchors = torch.tensor([[1, 4, 8]])
    unrolled = head.unroll(taps, embeddings, anchors, DEPTH)
    for i, anchor in enumerate(anchors[0].tolist()):
        torch.testing.assert_close(unrolled[:, i], drafted(head, taps, embeddings, anchor))


def test_unrolling_looks_at_nothing_behind():
    """Not at features from the anchor on, which a drafter doesn't have, nor at tokens behind an entry's last."""
    head = make()
    taps, embeddings = text(head)
    anchor, depth = 5, 3
    out = head.unroll(taps, embeddings, torch.tensor([[anchor]]), depth)
    other_taps, other_embeddings = taps.clone(), embeddings.clone()
    other_taps[:, anchor:] = 9.0
    other_embeddings[:, anchor + depth :] = 9.0
    torch.testing.assert_close(
        head.unroll(other_taps, other_embeddings, torch.tensor([[anchor]]), depth), out
    )
    for t in range(anchor):
        other = taps.clone()
        other[0, t] += 1
        assert (head.unroll(other, embeddings, torch.tensor([[anchor]]), depth) - out).abs().max() > 1e-5
    # Every token but the text's first is in some row.
    for t in range(1, anchor + depth):
        other = embeddings.clone()
        other[0, t] += 1
        changed = (head.unroll(taps, other, torch.tensor([[anchor]]), depth) - out).abs().amax((0, 1, 3))
        assert (changed > 1e-5).tolist() == [t <= anchor + step for step in range(depth)]


def test_texts_of_a_batch_do_not_mix():
    head = make()
    taps, embeddings = text(head, batch=2)
    anchors = torch.tensor([[3, 6], [2, 7]])
    together = head.unroll(taps, embeddings, anchors, DEPTH)
    for i in range(2):
        alone = head.unroll(taps[i : i + 1], embeddings[i : i + 1], anchors[i : i + 1], DEPTH)
        torch.testing.assert_close(together[i : i + 1], alone)


def test_the_end_of_a_text_may_be_reached():
    head = make()
    taps, embeddings = text(head)
    out = head.unroll(taps, embeddings, torch.tensor([[TOKENS - 2]]), DEPTH)
    assert out.isfinite().all()
    torch.testing.assert_close(out[:, :, :1], head.unroll(taps, embeddings, torch.tensor([[TOKENS - 2]]), 1))


def test_every_parameter_is_trained():
    head = make().requires_grad_(True)
    taps, embeddings = text(head)
    head.logits(head.unroll(taps, embeddings, torch.tensor([[3, 5]]), 2), torch.zeros(0)).logsumexp(
        -1
    ).sum().backward()
    for name, parameter in head.named_parameters():
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("own", [24, None], ids=["own lm_head", "target's lm_head"])
def test_logits_and_token_ids(own):
    head = make(draft_vocab_size=own)
    hidden, lm_head = torch.randn(2, 32), torch.randn(96, 32)
    normed = F.rms_norm(hidden, (32,), head.norm.weight, 1e-6)
    weight = lm_head if own is None else head.lm_head.weight
    torch.testing.assert_close(head.logits(hidden, lm_head), normed @ weight.T)
    if own is not None:
        head.set_draft_vocabulary(torch.arange(24) * 4 + 3)
        assert head.token_ids(torch.tensor([[0, 2]])).tolist() == [[3, 11]]
        assert head.t2d.sum() == 24


def test_against_a_naive_forward_in_float64():
    """The definition once more, one query at a time, with plain indexing; a node sees the context and its own
    ancestors, not its sibling."""
    head = make()
    config, anchor = head.config, 6
    taps, embeddings = text(head)
    w = {name: tensor.double() for name, tensor in head.state_dict().items()}
    children = torch.randn(2, config.hidden_size, generator=torch.Generator().manual_seed(4))

    def norm(x, name):
        return x / (x.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps).sqrt() * w[name + ".weight"]

    def rotated(x, position):
        half = config.head_dim // 2
        angle = position * config.rope_theta ** (-2 * torch.arange(half).double() / config.head_dim)
        low, high = x[..., :half], x[..., half:]
        return torch.cat(
            (low * angle.cos() - high * angle.sin(), high * angle.cos() + low * angle.sin()), dim=-1
        )

    def project(feature, embedding, kind, heads):
        pair = torch.cat((norm(embedding, "midlayer.input_layernorm"), norm(feature, "midlayer.hidden_norm")))
        return (w[f"midlayer.self_attn.{kind}_proj.weight"] @ pair).view(heads, config.head_dim)

    def run(feature, embedding, position, seen):
        """Output of a row after the rows `seen` (feature, embedding, position)."""
        rows = [*seen, (feature, embedding, position)]
        keys = torch.stack([rotated(project(f, e, "k", config.kv_heads), p) for f, e, p in rows])
        values = torch.stack([project(f, e, "v", config.kv_heads) for f, e, _ in rows])
        q = rotated(project(feature, embedding, "q", config.heads), position)
        heads = []
        for n in range(config.heads):
            shared = n // (config.heads // config.kv_heads)
            heads.append((keys[:, shared] @ q[n] / config.head_dim**0.5).softmax(0) @ values[:, shared])
        x = feature + w["midlayer.self_attn.o_proj.weight"] @ torch.cat(heads)
        h = norm(x, "midlayer.post_attention_layernorm")
        gated = F.silu(w["midlayer.mlp.gate_proj.weight"] @ h) * (w["midlayer.mlp.up_proj.weight"] @ h)
        return x + w["midlayer.mlp.down_proj.weight"] @ gated

    fused = taps[0].double() @ w["fc.weight"].T
    e = embeddings[0].double()
    context = [(fused[i], e[i + 1], i) for i in range(anchor - 1)]
    root_row = (fused[anchor - 1], e[anchor], anchor - 1)
    root = run(*root_row, context)
    expected = torch.stack([run(root, child.double(), anchor, [*context, root_row]) for child in children])

    features = head.fuse(taps)
    kv = head.context_kv(features[:, : anchor - 1], embeddings[:, 1:anchor], torch.arange(anchor - 1)[None])
    everything = torch.ones(1, 1, anchor, dtype=torch.bool)
    root_out, kv = head(
        features[:, anchor - 1 : anchor], embeddings[:, anchor : anchor + 1], torch.tensor([[anchor - 1]]), kv,
        everything,
    )  # fmt: skip
    mask = torch.cat((everything.expand(1, 2, -1), torch.eye(2, dtype=torch.bool)[None]), dim=2)
    out, _ = head(root_out.expand(1, 2, -1), children[None], torch.full((1, 2), anchor), kv, mask)
    torch.testing.assert_close(root_out[0, 0].double(), root, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out[0].double(), expected, rtol=1e-5, atol=1e-5)
