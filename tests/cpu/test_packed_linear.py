"""Packed weights change how fast a linear layer is, not what it computes, and follow weight updates."""

import pytest
import torch
from sglang.srt.layers.quantization.unquant import UnquantizedEmbeddingMethod, UnquantizedLinearMethod

from jetspec_sglang.cpu import packed_linear
from jetspec_sglang.cpu.packed_linear import dtype_is_packable, pack_linear_layers

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 5e-2}


class Layer(torch.nn.Module):
    def __init__(self, method, dtype):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(48, 32).to(dtype), requires_grad=False)
        self.quant_method = method


class Model(torch.nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.up = Layer(UnquantizedLinearMethod(), dtype)
        self.head = Layer(UnquantizedEmbeddingMethod(), dtype)
        self.other = Layer(object(), dtype)

    def load_weights(self, weights):
        for name, tensor in weights:
            # As SGLang's loaders write: through .data, unseen by version counters.
            dict(self.named_parameters())[name].data.copy_(tensor)


@pytest.fixture(params=[torch.float32, torch.bfloat16])
def model(request):
    if not dtype_is_packable(request.param):
        pytest.skip("no packed kernels for this type here")
    return Model(request.param)


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 5, 16])
def test_packed_equals_plain(model, rows):
    assert pack_linear_layers(model) == 2
    x = torch.randn(rows, 32, dtype=model.up.weight.dtype)
    bias = torch.randn(48, dtype=x.dtype)
    for layer in (model.up, model.head):
        for given in (None, bias):
            expected = torch.nn.functional.linear(x, layer.weight, given)
            got = layer.quant_method.apply(layer, x, given)
            assert got.dtype == expected.dtype
            tolerance = TOLERANCE[x.dtype]
            torch.testing.assert_close(got.float(), expected.float(), atol=tolerance, rtol=tolerance)


@torch.no_grad()
def test_loading_weights_drops_the_packed_copy(model):
    pack_linear_layers(model)
    x = torch.randn(2, 32, dtype=model.up.weight.dtype)
    model.up.quant_method.apply(model.up, x)
    fresh = torch.randn(48, 32).to(x.dtype)
    model.load_weights([("up.weight", fresh)])
    expected = torch.nn.functional.linear(x, fresh)
    got = model.up.quant_method.apply(model.up, x)
    torch.testing.assert_close(got, expected, atol=TOLERANCE[x.dtype], rtol=TOLERANCE[x.dtype])


def test_the_methods_keep_their_kind(model):
    pack_linear_layers(model)
    assert isinstance(model.up.quant_method, UnquantizedLinearMethod)
    assert isinstance(model.head.quant_method, UnquantizedEmbeddingMethod)
    assert type(model.other.quant_method) is object


def test_nothing_is_packed_where_memory_is_short(model, monkeypatch):
    monkeypatch.setattr(packed_linear, "MAX_BYTES", 100)
    assert pack_linear_layers(model) == 0
    assert type(model.up.quant_method) is UnquantizedLinearMethod
