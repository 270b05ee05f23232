"""Names and shapes of a published head's tensors."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from .head_config import AutoregressiveConfig, Head, HeadConfig, LayeredConfig, SpecBlockConfig


class HeadError(ValueError):
    """A draft head on disk that cannot be used; the message says what is wrong and where."""


Shapes = dict[str, tuple[int, ...]]


def expected_shapes(config: Head) -> Shapes:
    """Every tensor the file must hold, and no other."""
    if isinstance(config, AutoregressiveConfig):
        return _autoregressive(config)
    if isinstance(config, SpecBlockConfig):
        return _layered(config) | _spec_block(config)
    assert isinstance(config, HeadConfig)
    return _layered(config) | {f"path_corrector.{name}": s for name, s in _corrector(config).items()}


def _layered(config: LayeredConfig) -> Shapes:
    """Under the names of `causal_head.LayeredHead`."""
    hidden, d = config.hidden_size, config.head_dim
    norms = {"input_layernorm": (hidden,), "self_attn.q_norm": (d,), "self_attn.k_norm": (d,)}
    layer = _layer(config, hidden) | norms
    shapes: Shapes = {"fc": (hidden, config.tap_width), "hidden_norm": (hidden,), "norm": (hidden,)}
    shapes |= {f"layers.{i}.{name}": shape for i in range(config.layers) for name, shape in layer.items()}
    return {f"{name}.weight": shape for name, shape in shapes.items()}


def _spec_block(config: SpecBlockConfig) -> Shapes:
    """What `spec_block_head.SpecBlockHead` has beside its layers."""
    hidden = config.hidden_size
    shapes: Shapes = {"rank_head": (config.ranks + 1, hidden)}
    for i in range(config.layers):
        shapes |= {f"shifts.{i}.norm": (hidden,), f"shifts.{i}.proj": (hidden, hidden)}
    return {f"{name}.weight": shape for name, shape in shapes.items()}


def _corrector(config: HeadConfig) -> Shapes:
    """Of `path_corrector.PathCorrector` or `treeflash_corrector.TreeFlashCorrector`, if the head has one."""
    own, hidden, inner = config.corrector, config.hidden_size, config.intermediate_size
    if own is None:
        return {}
    if own.kind == "treeflash":
        return {
            "norm.weight": (hidden,),
            "ug.weight": (2 * inner, 2 * hidden),
            "ug.bias": (2 * inner,),
            "d.weight": (hidden, inner),
        }
    state, gated = own.state_size, own.kind == "mlp"
    shapes: Shapes = {"project": (own.rank * (2 if gated else 1), hidden + (state or hidden))}
    if state is not None:
        shapes |= {"inputs": (3 * state, hidden), "recurrence": (3 * state, state)}
    if own.kind == "domino":
        shapes["table"] = (config.vocab_size, own.rank)
    else:
        shapes |= {"norm": (hidden,), "keys": (own.rank, hidden)}
    return {f"{name}.weight": shape for name, shape in shapes.items()}


def _autoregressive(config: AutoregressiveConfig) -> Shapes:
    """Under the names of `AutoregressiveHead`; see `checkpoint_eagle` for those that are read, too."""
    hidden, own = config.hidden_size, config.draft_vocab_size
    layer = _layer(config, 2 * hidden) | {"input_layernorm": (hidden,), "hidden_norm": (hidden,)}
    shapes: Shapes = {"fc": (hidden, config.tap_width), "norm": (hidden,)}
    shapes |= {f"midlayer.{name}": shape for name, shape in layer.items()}
    if own is not None:
        shapes["lm_head"] = (own, hidden)
    named = {f"{name}.weight": shape for name, shape in shapes.items()}
    if config.maps_vocabulary:
        assert own is not None
        named |= {"d2t": (own,), "t2d": (config.vocab_size,)}
    return named


def _layer(config: Head, inputs: int) -> Shapes:
    """What all decoder layers have, with attention over `inputs` features."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return {
        "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (queries, inputs),
        "self_attn.k_proj": (keys, inputs),
        "self_attn.v_proj": (keys, inputs),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }


def check_tensors(config: Head, tensors: Mapping[str, Tensor], where: str) -> None:
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
