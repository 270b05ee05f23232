"""Published draft heads on disk: ``config.json`` and weights, read strictly and written.

Three formats, told apart by the config's architecture: DFlash/JetSpec (`checkpoint_block`), maybe with a path corrector
(`checkpoint_corrector`), EAGLE-3 (`checkpoint_eagle`), and our own for SpecBlock (`checkpoint_spec_block`). A place is
a local folder, a hub repository, either with ``::subfolder``, or ``builtin:name``, a packaged head.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from jetspec_sglang.builtin.head import BuiltinHeadError, named_builtin

from .checkpoint_block import default_target_layer_ids, parse_block_config, published_block_config
from .checkpoint_corrector import our_names, published_names
from .checkpoint_eagle import (
    canonical_names,
    check_vocabulary_maps,
    is_eagle,
    parse_eagle_config,
    published_eagle_config,
)
from .checkpoint_spec_block import is_spec_block, parse_spec_block_config, published_spec_block_config
from .checkpoint_values import published_values
from .head_config import AnyHead, AutoregressiveConfig, HeadConfig
from .head_tensors import HeadError, check_tensors

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
PICKLED_WEIGHTS = "pytorch_model.bin"  # how the first EAGLE-3 heads were published

__all__ = [
    "HeadError",
    "check_fits_target",
    "default_target_layer_ids",
    "load_head_tensors",
    "locate",
    "read_head_config",
    "write_head",
]


def locate(place: str | Path) -> Path:
    """Local folder of ``folder``, ``folder::sub``, ``owner/repo``, ``owner/repo::sub`` or ``builtin:name``; may
    download."""
    try:
        if (packaged := named_builtin(place)) is not None:
            return packaged
    except BuiltinHeadError as error:
        raise HeadError(str(error)) from error
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
        wanted = [prefix + pattern for pattern in (CONFIG, "*.safetensors", PICKLED_WEIGHTS)]
        return Path(snapshot_download(repo, allow_patterns=wanted))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise HeadError(
            f"{repo} is neither a local folder nor a hub repository within reach: {error}"
        ) from error


def read_head_config(place: str | Path) -> AnyHead:
    """Parse and check ``config.json``."""
    path = locate(place) / CONFIG
    return parse_head_config(_read_json(path), str(path))


def parse_head_config(raw: dict[str, Any], where: str = CONFIG) -> AnyHead:
    """A published config as plain data; ``where`` names it in errors."""
    if is_eagle(raw):
        return parse_eagle_config(raw, where)
    return parse_spec_block_config(raw, where) if is_spec_block(raw) else parse_block_config(raw, where)


def check_fits_target(config: AnyHead, target_config: Any) -> None:
    """Raise unless the head was made for such a target; ``target_config`` is its transformers config."""
    target = getattr(target_config, "get_text_config", lambda: target_config)()
    for mine, theirs in (
        ("hidden_size", "hidden_size"),
        ("vocab_size", "vocab_size"),
        ("num_target_layers", "num_hidden_layers"),
    ):
        ours = getattr(config, mine)
        if ours is not None and ours != getattr(target, theirs):
            raise HeadError(
                f"head has {mine} {ours}, target has {theirs} {getattr(target, theirs)}: "
                "this head was trained for another target"
            )
    try:
        config.taps(target.num_hidden_layers)
    except ValueError as error:
        raise HeadError(f"{error}; list a head's taps in its config.json") from error


def load_head_tensors(place: str | Path) -> dict[str, Tensor]:
    """All tensors of the head under the names of its torch model, names and shapes checked against its config."""
    folder = locate(place)
    config = read_head_config(folder)
    path = _weights(folder)
    if path is None:
        raise HeadError(f"no file {folder / WEIGHTS}")
    tensors = _checked(config, _load(path), str(path))
    if isinstance(config, AutoregressiveConfig):
        check_vocabulary_maps(config, tensors, str(path))
    return tensors


def check_head_files(place: str | Path) -> None:
    """Check config and, where the weights are one file, its tensors' names and shapes; reads headers only."""
    import torch
    from safetensors import SafetensorError, safe_open

    folder = locate(place)
    config = read_head_config(folder)
    path = _weights(folder)
    if path is None or path.name != WEIGHTS:
        return  # several files, or one that can only be read whole: the loader checks them
    try:
        with safe_open(path, "pt") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise HeadError(f"{path} is not a readable safetensors file: {error}") from error
    _checked(config, {name: torch.empty(s, device="meta") for name, s in shapes.items()}, str(path))


def _weights(folder: Path) -> Path | None:
    found = (folder / name for name in (WEIGHTS, PICKLED_WEIGHTS))
    return next((path for path in found if path.is_file()), None)


def _load(path: Path) -> dict[str, Tensor]:
    import pickle

    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if path.name == WEIGHTS:
        try:
            return load_file(path)
        except SafetensorError as error:
            raise HeadError(f"{path} is not a readable safetensors file: {error}") from error
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise HeadError(f"{path} is not a readable file of tensors: {error}") from error


def _checked(config: AnyHead, tensors: dict[str, Tensor], where: str) -> dict[str, Tensor]:
    if isinstance(config, AutoregressiveConfig):
        tensors = canonical_names(config, tensors)
    elif isinstance(config, HeadConfig):
        tensors = dict(our_names(tensors.items()))
    check_tensors(config, tensors, where)
    return tensors


def write_head(folder: str | Path, config: AnyHead, tensors: dict[str, Tensor], card: str) -> None:
    """Write the published format: bfloat16 tensors, config.json and the model card."""
    import torch
    from safetensors.torch import save_file

    check_tensors(config, tensors, "tensors to be written")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(config, HeadConfig):
        tensors = published_names(config, tensors)
    published = {
        name: (tensor.detach().to(torch.bfloat16) if tensor.is_floating_point() else tensor).contiguous()
        for name, tensor in tensors.items()
    }
    save_file(published, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(published_config(config), indent=2) + "\n")
    (folder / CARD).write_text(card)


def published_config(config: AnyHead) -> dict[str, Any]:
    """``config.json`` of the head's format."""
    if isinstance(config, HeadConfig):
        own = published_block_config(config)
    elif isinstance(config, AutoregressiveConfig):
        own = published_eagle_config(config)
    else:
        own = published_spec_block_config(config)
    return {**own, "num_target_layers": config.num_target_layers, **published_values(config)}


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
