"""Linear layers with weights packed once for oneDNN, instead of being read in their plain layout each step.

At a few rows a linear layer is bound by reading its weights, and the packed layout is read about twice as
fast. The plain weight stays: embeddings, drafters and weight updates use it. So packing costs memory of the
same size again, and happens only where that fits a modest part of what is free.
"""

from __future__ import annotations

import logging
from typing import Any

import psutil
import torch
from sglang.srt.layers.quantization.base_config import QuantizeMethodBase
from sglang.srt.layers.quantization.unquant import UnquantizedEmbeddingMethod, UnquantizedLinearMethod

logger = logging.getLogger(__name__)

MAX_SHARE_OF_AVAILABLE_MEMORY = 1 / 8
MAX_BYTES = 4 << 30


class _Packed(QuantizeMethodBase):
    """One layer's packed copy of its weight `[out, in]`, made at first use and dropped on weight updates."""

    _copy: torch.Tensor | None = None

    def apply(self, layer, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """`x [..., in]` -> `[..., out]`."""
        weight = layer.weight
        if x.dtype != weight.dtype:
            return super().apply(layer, x, bias)
        if self._copy is None:
            self._copy = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
        return torch.ops.mkldnn._linear_pointwise(x, self._copy, bias, "none", [], "")

    def process_weights_after_loading(self, layer) -> None:
        self.forget()
        super().process_weights_after_loading(layer)

    def forget(self) -> None:
        self._copy = None


class PackedLinearMethod(_Packed, UnquantizedLinearMethod):
    """SGLang's unquantized linear method, computing from a packed copy."""


class PackedEmbeddingMethod(_Packed, UnquantizedEmbeddingMethod):
    """The same for a vocabulary table that also serves as LM head."""


PACKED_FORM = {
    UnquantizedLinearMethod: PackedLinearMethod,
    UnquantizedEmbeddingMethod: PackedEmbeddingMethod,
}


def pack_linear_layers(model: torch.nn.Module) -> int:
    """Let every plain linear layer and LM head of `model` compute from packed weights; returns how many.

    Weight updates through the model's `load_weights` drop the packed copies.
    """
    layers: list[Any] = [layer for layer in model.modules() if _can_pack(layer)]
    # Tied modules share one weight but are used once each as a linear layer, so each name counts.
    size = sum(layer.weight.nbytes for layer in layers)
    limit = min(psutil.virtual_memory().available * MAX_SHARE_OF_AVAILABLE_MEMORY, MAX_BYTES)
    if not layers or size > limit:
        if layers:
            logger.info("Weights stay unpacked: %.1f GB more would be needed.", size / 1e9)
        return 0
    methods: list[_Packed] = []
    for layer in layers:
        layer.quant_method = PACKED_FORM[type(layer.quant_method)]()
        methods.append(layer.quant_method)
    _forget_on_load(model, methods)
    return len(methods)


def _can_pack(layer: torch.nn.Module) -> bool:
    weight = getattr(layer, "weight", None)
    if type(getattr(layer, "quant_method", None)) not in PACKED_FORM or weight is None or weight.dim() != 2:
        return False
    return weight.device.type == "cpu" and dtype_is_packable(weight.dtype)


def dtype_is_packable(dtype: torch.dtype) -> bool:
    """Whether oneDNN has packed kernels for this type on this processor."""
    if not torch.backends.mkldnn.is_available():
        return False
    return dtype == torch.float32 or (
        dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def _forget_on_load(model: torch.nn.Module, methods: list[_Packed]) -> None:
    load = getattr(model, "load_weights", None)
    if load is None:
        return

    def load_weights(*args, **kwargs):
        try:
            return load(*args, **kwargs)
        finally:
            for method in methods:
                method.forget()

    model.load_weights = load_weights  # type: ignore[assignment]  # torch types attributes as tensors
