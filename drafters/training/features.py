"""The stage `features`: shards of tokens in, shards with the target's taps and distributions out.

One forward of the target over each text. Files keep their names; those that are there already are left alone,
so the stage goes on where it was stopped, and is a no-op where `data` kept the features itself. One shard is in
memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from .config import TrainConfig
from .disk import require_space
from .errors import TrainError
from .shards import Shard, write_shard
from .target import TextReader, target_layer_ids

Report = Callable[[int, int], None]


def pending(config: TrainConfig) -> list[str]:
    """Shards of tokens whose features are still to be made, held-out ones first."""
    names = {file.name for file in config.tokens_folder.glob("*.safetensors")}
    return sorted(names - {file.name for file in config.features_folder.glob("*.safetensors")})


def run(config: TrainConfig, target: str, report: Report = lambda *_: None) -> None:
    """Make all pending shards; `report(shards done, shards to do)` is called after each.

    Raises TrainError without any data, or without room for the features.
    """
    names = pending(config)
    if not names:
        if not any(config.features_folder.glob("shard-*.safetensors")):
            raise TrainError(f"no shards in {config.tokens_folder}: run the stage `data` first")
        return
    from transformers import AutoConfig

    shape = AutoConfig.from_pretrained(target)
    taps = target_layer_ids(config, shape)
    tokens = sum(Shard(config.tokens_folder / name).offsets[-1] for name in names)
    require_space(
        config.features_folder,
        tokens * (2 * len(taps) * shape.hidden_size + 16 * 6 + 4),
        "the stage `features`",
        "tap fewer layers, move features.folder to another disk, or set features.mode to `online`",
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    reader = TextReader(target, taps, torch.bfloat16, device)
    for done, name in enumerate(names, 1):
        shard = Shard(config.tokens_folder / name)
        texts = [shard.tokens(i) for i in range(len(shard.prompt_lens))]
        meta = {**shard.meta, "target_layer_ids": taps, "hidden_size": shape.hidden_size}
        write_shard(config.features_folder / name, reader.read(texts, whole=False), meta)
        report(done, len(names))
