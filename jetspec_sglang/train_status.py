"""`jetspec train --status`: what each stage of a config has on disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from jetspec_sglang.drafters.training.config import TrainConfig


def show_status(settings: TrainConfig, console: Console) -> None:
    """Print a row a stage: where it writes, and what is there."""
    from jetspec_sglang.drafters.checkpoint import CONFIG, WEIGHTS

    table = Table("stage", "folder", "what is there")
    tokens, features = (
        _shards(each, settings) for each in (settings.tokens_folder, settings.features_folder)
    )
    if not tokens and features:
        tokens = "nothing apart: the features came with the answers"
    table.add_row("data", str(settings.tokens_folder), tokens or "nothing")
    table.add_row("features", str(settings.features_folder), features or "nothing")
    table.add_row("fit", str(settings.run_folder), _run(settings.run_folder))
    head = settings.head_folder
    whole = (head / CONFIG).exists() and (head / WEIGHTS).exists()
    table.add_row("export", str(head), "a head" if whole else "nothing")
    console.print(table)


def _shards(path: Path, settings: TrainConfig) -> str:
    from jetspec_sglang.drafters.training.shards import Folder

    folder = Folder(path)
    names = folder.names()
    if not names:
        return ""
    heldout = sum(len(folder.shard(name).prompt_lens) for name in folder.names("heldout"))
    size = sum((path / name).stat().st_size for name in names)
    return (
        f"{len(names)} shards, {folder.response_tokens():,} of {settings.data.response_tokens:,} response tokens, "
        f"{size / 1e9:.2f} GB; {heldout} held-out texts"
    )


def _run(path: Path) -> str:
    from jetspec_sglang.drafters.training import metrics, state

    if not (path / state.FILE).exists():
        return "nothing"
    from .train_progress import describe

    records = metrics.read(path)
    latest = [next((r for r in reversed(records) if key in r), None) for key in ("loss", "heldout")]
    return "a checkpoint; " + "; ".join(describe(record) for record in latest if record)
