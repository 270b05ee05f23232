"""``config.json`` of DFlash and JetSpec heads: a Qwen3 config with a few extra keys.

Three projects name causality differently, and a reader that misses the key serves a causal head bidirectionally
without a word, so all spellings are read, in this order:

    is_causal (SGLang) -> dflash_config.causal (vLLM, NeMo) -> dflash_config.causal_head (JetSpec) -> False
"""

from __future__ import annotations

from typing import Any

from .checkpoint_corrector import parse_corrector, published_corrector, published_treeflash
from .checkpoint_values import build, common_values, need, refuse_common
from .head_config import HeadConfig
from .head_tensors import HeadError

ARCHITECTURE = "DFlashDraftModel"  # what published heads name


def parse_block_config(raw: dict[str, Any], where: str) -> HeadConfig:
    """A published config as plain data; ``where`` names it in errors."""
    dflash = raw.get("dflash_config") or {}
    if not isinstance(dflash, dict):
        raise HeadError(f"{where}: dflash_config is {type(dflash).__name__}, not an object")

    def either(key: str) -> Any:
        return dflash[key] if dflash.get(key) is not None else raw.get(key)

    refuse_common(raw, where)
    if dflash.get("target_hidden_size", raw.get("hidden_size")) != raw.get("hidden_size"):
        raise HeadError(f"{where}: target_hidden_size differs from hidden_size, there is no adapter for that")
    layers, target_layers = need(raw, "num_hidden_layers", where), need(raw, "num_target_layers", where)
    taps, mask_token_id = either("target_layer_ids"), either("mask_token_id")
    if mask_token_id is None:
        raise HeadError(f"{where}: key mask_token_id is missing, in dflash_config and at the top level")
    values = common_values(raw, where)
    values["block_size"] = need(raw, "block_size", where)
    if values["rope_theta"] is None:
        raise HeadError(f"{where}: key rope_theta is missing")
    return build(
        HeadConfig,
        where,
        values,
        layers=layers,
        target_layer_ids=taps if taps is not None else default_target_layer_ids(target_layers, layers),
        mask_token_id=mask_token_id,
        causal=block_is_causal(raw),
        num_target_layers=target_layers,
        **parse_corrector(raw, where),
    )


def block_is_causal(raw: dict[str, Any]) -> Any:
    """Causality in any spelling, from a config as plain data."""
    dflash = raw.get("dflash_config") or {}
    for value in (raw.get("is_causal"), dflash.get("causal"), dflash.get("causal_head")):
        if value is not None:
            return value
    return False


def default_target_layer_ids(target_layers: int, layers: int) -> tuple[int, ...]:
    """Taps of a head that lists none: spread evenly from layer 1 to the third from the end, as
    published."""
    if layers == 1:
        return (target_layers // 2,)
    return tuple(round(1 + i * (target_layers - 4) / (layers - 1)) for i in range(layers))


def published_block_config(config: HeadConfig) -> dict[str, Any]:
    """Causality in every spelling, so that no reader gets it wrong."""
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen3",
        "is_causal": config.causal,
        "dflash_config": {
            "causal_head": config.causal,
            "causal": config.causal,
            "mask_token_id": config.mask_token_id,
            "target_layer_ids": list(config.target_layer_ids),
            **published_corrector(config),
        },
        "num_hidden_layers": config.layers,
        **published_treeflash(config),
    }
