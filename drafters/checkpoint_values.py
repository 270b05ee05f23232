"""Reading config.json of any head: the keys that all formats share, and how faults are named."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from .head_config import Head
from .head_tensors import HeadError

Part = TypeVar("Part", bound=BaseModel)
SomeHead = TypeVar("SomeHead", bound=Head)


def need(raw: dict[str, Any], key: str, where: str) -> Any:
    if raw.get(key) is None:
        raise HeadError(f"{where}: key {key} is missing")
    return raw[key]


def common_values(raw: dict[str, Any], where: str) -> dict[str, Any]:
    """Fields of `Head`, without block_size. rope_theta is at the top level before transformers 5 and inside
    rope_parameters since; None if it is in neither."""

    def needed(key: str) -> Any:
        return need(raw, key, where)

    return {
        "hidden_size": needed("hidden_size"),
        "intermediate_size": needed("intermediate_size"),
        "heads": needed("num_attention_heads"),
        "kv_heads": needed("num_key_value_heads"),
        "head_dim": raw.get("head_dim") or needed("hidden_size") // needed("num_attention_heads"),
        "rms_norm_eps": needed("rms_norm_eps"),
        "rope_theta": raw.get("rope_theta", (raw.get("rope_parameters") or {}).get("rope_theta")),
        "vocab_size": needed("vocab_size"),
        "max_position_embeddings": needed("max_position_embeddings"),
    }


def refuse_common(raw: dict[str, Any], where: str) -> None:
    """What the formats allow but our models don't compute; reading on would give silent nonsense."""
    scaling = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    if scaling.get("rope_type", scaling.get("type", "default")) != "default":
        raise HeadError(f"{where}: rope scaling {scaling} is not supported")
    if raw.get("attention_bias"):
        raise HeadError(f"{where}: attention_bias is not supported")
    if raw.get("hidden_act", "silu") != "silu":
        raise HeadError(f"{where}: hidden_act {raw['hidden_act']} is not supported, only silu is")
    if "sliding_attention" in (raw.get("layer_types") or []):
        raise HeadError(f"{where}: sliding_attention layers are not supported")


def build(kind: type[SomeHead], where: str, values: dict[str, Any], **own: Any) -> SomeHead:
    """A config, or HeadError with what is wrong in it."""
    return build_part(kind, where, values | own)


def build_part(kind: type[Part], where: str, values: Any) -> Part:
    """One of the models that a config is made of, or HeadError; ``values`` may be anything."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        faults = [": ".join((*map(str, fault["loc"]), fault["msg"])) for fault in error.errors()]
        raise HeadError(f"{where}: {'; '.join(faults)}") from error


def published_values(config: Head) -> dict[str, Any]:
    """The keys that all formats share, as they are written."""
    return {
        "block_size": config.block_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "max_position_embeddings": config.max_position_embeddings,
        "vocab_size": config.vocab_size,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
