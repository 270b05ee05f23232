"""``config.json`` of SpecBlock heads. No such head has been published, so the format is our own.

A Qwen3 config, as DFlash heads have it, and:

    spec_block_config.positions          K, depths that one forward drafts
    spec_block_config.ranks              R, ranks that the rank head tells apart; one more output is "none of them"
    spec_block_config.mask_token_id      what a block reads behind its token
    spec_block_config.target_layer_ids   taps
    block_size                           the depth it was trained for, and one for the anchor

Tensors are named as in `SpecBlockHead`: those of a DFlash head, shifts.{layer}.{norm,proj} and rank_head.
"""

from __future__ import annotations

from typing import Any

from .checkpoint_values import build, common_values, need, refuse_common
from .head_config import SpecBlockConfig
from .head_tensors import HeadError

ARCHITECTURE = "SpecBlockDraftModel"
KEYS = ("positions", "ranks", "mask_token_id", "target_layer_ids")


def is_spec_block(raw: dict[str, Any]) -> bool:
    return ARCHITECTURE in (raw.get("architectures") or [])


def parse_spec_block_config(raw: dict[str, Any], where: str) -> SpecBlockConfig:
    """A config as plain data; ``where`` names it in errors. Raises HeadError for what is missing or can't be."""
    own = need(raw, "spec_block_config", where)
    if not isinstance(own, dict):
        raise HeadError(f"{where}: spec_block_config is {type(own).__name__}, not an object")
    if unknown := sorted(own.keys() - set(KEYS)):
        raise HeadError(f"{where}: spec_block_config has unknown keys {', '.join(unknown)}")
    refuse_common(raw, where)
    values = common_values(raw, where)
    if values["rope_theta"] is None:
        raise HeadError(f"{where}: key rope_theta is missing")
    return build(
        SpecBlockConfig,
        where,
        values,
        block_size=need(raw, "block_size", where),
        layers=need(raw, "num_hidden_layers", where),
        num_target_layers=need(raw, "num_target_layers", where),
        **{key: need(own, key, f"{where}: spec_block_config") for key in KEYS},
    )


def published_spec_block_config(config: SpecBlockConfig) -> dict[str, Any]:
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen3",
        "spec_block_config": config.model_dump(mode="json", include=set(KEYS)),
        "num_hidden_layers": config.layers,
    }
