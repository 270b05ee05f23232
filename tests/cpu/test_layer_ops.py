"""Each layer operation gives the numbers of the SGLang operation that it replaces."""

import pytest
import torch
from sglang.srt.layers.activation import SiluAndMul
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.rotary_embedding.base import RotaryEmbedding

from jetspec_sglang.cpu import layer_ops

TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 2e-2}

pytestmark = [
    pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16]),
    pytest.mark.parametrize("tokens", [1, 7]),
]


def same(got, expected, dtype):
    for left, right in zip(got, expected, strict=True):
        assert left.dtype == right.dtype
        assert left.shape == right.shape
        torch.testing.assert_close(left.float(), right.float(), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@torch.no_grad()
def test_rms_norm(dtype, tokens):
    norm = RMSNorm(48, eps=1e-5).to(dtype)
    norm.weight.copy_(torch.randn(48))
    x, residual = torch.randn(tokens, 48, dtype=dtype), torch.randn(tokens, 48, dtype=dtype)
    same([layer_ops.rms_norm_forward(norm, x)], [norm.forward_native(x)], dtype)
    same(layer_ops.rms_norm_forward(norm, x, residual), norm.forward_native(x, residual), dtype)
    norm.weight.mul_(2)  # a weight update must not leave an old copy behind
    same([layer_ops.rms_norm_forward(norm, x)], [norm.forward_native(x)], dtype)


@torch.no_grad()
def test_rms_norm_variants_go_to_the_original(dtype, tokens):
    norm = RMSNorm(48, var_hidden_size=24).to(dtype)
    x = torch.randn(tokens, 48, dtype=dtype)
    same([layer_ops.rms_norm_forward(norm, x)], [norm.forward_native(x)], dtype)


def test_silu_and_mul(dtype, tokens):
    x = torch.randn(tokens, 64, dtype=dtype)
    same([layer_ops.silu_and_mul(None, x)], [SiluAndMul().forward_native(x)], dtype)


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("fused", [True, False])
def test_rotary(dtype, tokens, neox, fused):
    rope = RotaryEmbedding(16, 16, 128, 10000, neox, dtype)
    qkv = torch.randn(tokens, 16 * 8, dtype=dtype)
    query, key, _ = qkv.split([64, 32, 32], dim=-1)
    if not fused:
        query, key = query.clone(), key.clone()
    positions = torch.randint(0, 128, (tokens,))
    for _ in range(2):
        expected = rope.forward_native(positions, query, key)
        same(layer_ops.rotate(rope, positions, query, key), expected, dtype)
        positions += 0 if int(positions.max()) == 127 else 1  # in place: the gathered tables are out of date
