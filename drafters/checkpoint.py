"""Published draft heads on disk: ``config.json`` and ``model.safetensors``, read strictly and written.

The format is the one of DFlash and JetSpec heads: a Qwen3 config with a few extra keys, and the head's
tensors without embedding and lm_head. Three projects name causality differently, and a reader that misses
the key serves a causal head bidirectionally without a word, so all spellings are read, in this order:

    is_causal (SGLang) -> dflash_config.causal (vLLM, NeMo) -> dflash_config.causal_head (JetSpec) -> False

A place is a local folder, a hub repository, or either with ``::subfolder``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from torch import Tensor

from .head_config import HeadConfig
from .head_tensors import HeadError, check_tensors

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"

__all__ = [
    "HeadError",
    "check_fits_target",
    "default_target_layer_ids",
    "load_head_tensors",
    "locate",
    "read_head_config",
    "require_causal",
    "write_head",
]


def locate(place: str | Path) -> Path:
    """Local folder of ``folder``, ``folder::sub``, ``owner/repo`` or ``owner/repo::sub``; may download."""
    base, _, sub = str(place).partition("::")
    folder = Path(base).expanduser()
    if not folder.is_dir():
        if base.count("/") != 1 or base.startswith(("/", ".", "~")):
            raise HeadError(f"no folder {folder}")
        folder = _snapshot(base, sub)
    folder = folder / sub if sub else folder
    if not folder.is_dir():
        raise HeadError(f"{base} has no subfolder {sub}")
    return folder


def _snapshot(repo: str, sub: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    prefix = f"{sub}/" if sub else ""
    try:
        return Path(snapshot_download(repo, allow_patterns=[f"{prefix}{CONFIG}", f"{prefix}*.safetensors"]))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise HeadError(
            f"{repo} is neither a local folder nor a hub repository within reach: {error}"
        ) from error


def read_head_config(place: str | Path) -> HeadConfig:
    """Parse and check ``config.json``."""
    path = locate(place) / CONFIG
    return parse_head_config(_read_json(path), str(path))


def parse_head_config(raw: dict[str, Any], where: str = CONFIG) -> HeadConfig:
    """A published config as plain data; ``where`` names it in errors."""
    dflash = raw.get("dflash_config") or {}
    if not isinstance(dflash, dict):
        raise HeadError(f"{where}: dflash_config is {type(dflash).__name__}, not an object")

    def need(key: str) -> Any:
        if raw.get(key) is None:
            raise HeadError(f"{where}: key {key} is missing")
        return raw[key]

    def either(key: str) -> Any:
        return dflash[key] if dflash.get(key) is not None else raw.get(key)

    _refuse_unsupported(raw, dflash, where)
    layers, target_layers = need("num_hidden_layers"), need("num_target_layers")
    taps, mask_token_id = either("target_layer_ids"), either("mask_token_id")
    if mask_token_id is None:
        raise HeadError(f"{where}: key mask_token_id is missing, in dflash_config and at the top level")
    try:
        return HeadConfig(
            hidden_size=need("hidden_size"),
            intermediate_size=need("intermediate_size"),
            layers=layers,
            heads=need("num_attention_heads"),
            kv_heads=need("num_key_value_heads"),
            head_dim=raw.get("head_dim") or need("hidden_size") // need("num_attention_heads"),
            rms_norm_eps=need("rms_norm_eps"),
            rope_theta=_rope_theta(raw, where),
            vocab_size=need("vocab_size"),
            block_size=need("block_size"),
            target_layer_ids=taps if taps is not None else default_target_layer_ids(target_layers, layers),
            mask_token_id=mask_token_id,
            causal=_causal(raw, dflash),
            num_target_layers=target_layers,
            max_position_embeddings=need("max_position_embeddings"),
        )
    except ValidationError as error:
        faults = [": ".join((*map(str, fault["loc"]), fault["msg"])) for fault in error.errors()]
        raise HeadError(f"{where}: {'; '.join(faults)}") from error


def _causal(raw: dict[str, Any], dflash: dict[str, Any]) -> Any:
    for value in (raw.get("is_causal"), dflash.get("causal"), dflash.get("causal_head")):
        if value is not None:
            return value
    return False


def _rope_theta(raw: dict[str, Any], where: str) -> float:
    """Top level before transformers 5, inside ``rope_parameters`` since."""
    theta = raw.get("rope_theta", (raw.get("rope_parameters") or {}).get("rope_theta"))
    if theta is None:
        raise HeadError(f"{where}: key rope_theta is missing")
    return theta


def _refuse_unsupported(raw: dict[str, Any], dflash: dict[str, Any], where: str) -> None:
    """What the format allows but this model does not compute; reading on would give silent nonsense."""
    scaling = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    if scaling.get("rope_type", scaling.get("type", "default")) != "default":
        raise HeadError(f"{where}: rope scaling {scaling} is not supported")
    if raw.get("attention_bias"):
        raise HeadError(f"{where}: attention_bias is not supported")
    if "sliding_attention" in (raw.get("layer_types") or []):
        raise HeadError(f"{where}: sliding_attention layers are not supported")
    if dflash.get("target_hidden_size", raw.get("hidden_size")) != raw.get("hidden_size"):
        raise HeadError(f"{where}: target_hidden_size differs from hidden_size, there is no adapter for that")


def default_target_layer_ids(target_layers: int, layers: int) -> tuple[int, ...]:
    """Taps of a head that lists none: spread evenly from layer 1 to the third from the end, as
    published."""
    if layers == 1:
        return (target_layers // 2,)
    return tuple(round(1 + i * (target_layers - 4) / (layers - 1)) for i in range(layers))


def check_fits_target(config: HeadConfig, target_config: Any) -> None:
    """Raise unless the head was made for such a target; ``target_config`` is its transformers config."""
    target = getattr(target_config, "get_text_config", lambda: target_config)()
    for mine, theirs in (
        ("hidden_size", "hidden_size"),
        ("vocab_size", "vocab_size"),
        ("num_target_layers", "num_hidden_layers"),
    ):
        if getattr(config, mine) != getattr(target, theirs):
            raise HeadError(
                f"head has {mine} {getattr(config, mine)}, target has {theirs} {getattr(target, theirs)}: "
                "this head was trained for another target"
            )


def require_causal(config: HeadConfig) -> None:
    if not config.causal:
        raise HeadError(
            "head is bidirectional (none of is_causal, dflash_config.causal and dflash_config.causal_head "
            "is true), but a causal one is needed"
        )


def load_head_tensors(place: str | Path) -> dict[str, Tensor]:
    """All tensors of the head, names and shapes checked against its config."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder = locate(place)
    config = read_head_config(folder)
    path = folder / WEIGHTS
    if not path.is_file():
        raise HeadError(f"no file {path}")
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise HeadError(f"{path} is not a readable safetensors file: {error}") from error
    check_tensors(config, tensors, str(path))
    return tensors


def check_head_files(place: str | Path) -> None:
    """Check config and, where the weights are one file, its tensors' names and shapes; reads headers only."""
    import torch
    from safetensors import SafetensorError, safe_open

    folder = locate(place)
    config = read_head_config(folder)
    path = folder / WEIGHTS
    if not path.is_file():
        return  # several files: the loader checks them
    try:
        with safe_open(path, "pt") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise HeadError(f"{path} is not a readable safetensors file: {error}") from error
    check_tensors(config, {name: torch.empty(s, device="meta") for name, s in shapes.items()}, str(path))


def write_head(folder: str | Path, config: HeadConfig, tensors: dict[str, Tensor], card: str) -> None:
    """Write the published format: bfloat16 tensors, config.json and the model card."""
    import torch
    from safetensors.torch import save_file

    check_tensors(config, tensors, "tensors to be written")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    published = {name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in tensors.items()}
    save_file(published, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(published_config(config), indent=2) + "\n")
    (folder / CARD).write_text(card)


def published_config(config: HeadConfig) -> dict[str, Any]:
    """``config.json`` with causality in every spelling, so that no reader gets it wrong."""
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": config.block_size,
        "is_causal": config.causal,
        "num_target_layers": config.num_target_layers,
        "dflash_config": {
            "causal_head": config.causal,
            "causal": config.causal,
            "mask_token_id": config.mask_token_id,
            "target_layer_ids": list(config.target_layer_ids),
        },
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.layers,
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


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise HeadError(f"no file {path}")
    try:
        raw = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise HeadError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(raw, dict):
        raise HeadError(f"{path} holds a {type(raw).__name__}, not an object")
    return raw
