"""Names and shapes of a published head's tensors."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from .head_config import HeadConfig


class HeadError(ValueError):
    """A draft head on disk that cannot be used; the message says what is wrong and where."""


def expected_shapes(config: HeadConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor the file must hold, and no other."""
    hidden, inner, d = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.heads * d, config.kv_heads * d
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "self_attn.q_norm": (d,),
        "self_attn.k_norm": (d,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    shapes = {"fc": (hidden, config.tap_width), "hidden_norm": (hidden,), "norm": (hidden,)}
    shapes |= {f"layers.{i}.{name}": shape for i in range(config.layers) for name, shape in layer.items()}
    return {f"{name}.weight": shape for name, shape in shapes.items()}


def check_tensors(config: HeadConfig, tensors: Mapping[str, Tensor], where: str) -> None:
    """Raise HeadError on missing, unexpected or misshapen tensors."""
    expected = expected_shapes(config)
    if missing := sorted(expected.keys() - tensors.keys()):
        raise HeadError(f"{where}: missing tensors {_some(missing)}")
    if unexpected := sorted(tensors.keys() - expected.keys()):
        raise HeadError(f"{where}: unexpected tensors {_some(unexpected)}")
    for name, shape in expected.items():
        if tuple(tensors[name].shape) != shape:
            raise HeadError(f"{where}: {name} is {list(tensors[name].shape)}, expected {list(shape)}")


def _some(names: list[str], show: int = 5) -> str:
    rest = len(names) - show
    return ", ".join(names[:show]) + (f" and {rest} more" if rest > 0 else "")
