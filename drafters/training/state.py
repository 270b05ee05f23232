"""What a run must remember to go on after an interruption, and its atomic file.

Randomness needs no stored generator: every draw is seeded by (seed, purpose, counter), and the counters are
here.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from ..head_config import AnyHead
from .errors import TrainError

FILE = "checkpoint.pt"


@dataclass
class Progress:
    """Position in the schedule and in the data."""

    step: int = 0
    seconds: float = 0.0  # training time over all resumes
    passes: int = 0  # passes over the data begun before the present one
    cursor: int = 0  # batches of the present pass that are done
    shards: list[str] = field(default_factory=list)  # what the present pass goes over
    window: list[dict[str, float]] = field(default_factory=list)  # steps since the last record in the metrics


def generator(seed: int, purpose: int, counter: int) -> torch.Generator:
    """A generator that depends on nothing but its arguments."""
    return torch.Generator().manual_seed(random.Random(f"{seed}/{purpose}/{counter}").getrandbits(63))


class Ema:
    """Exponential moving average of parameters."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.tensors = {name: p.detach().clone() for name, p in module.named_parameters()}

    @torch.no_grad()
    def update(self, module: nn.Module, step: int) -> None:
        # A young average must not cling to the initialisation: the window grows with the run.
        decay = min(self.decay, (1 + step) / (10 + step))
        for name, p in module.named_parameters():
            self.tensors[name].lerp_(p, 1 - decay)


def best_weights(state: dict) -> dict[str, Tensor]:
    """What is to be exported from a checkpoint: the average where one was kept."""
    return state["head"] if state["ema"] is None else {**state["head"], **state["ema"]}


def size(head: nn.Module, ema: bool) -> int:
    """Bytes of a checkpoint: weights, AdamW's two moments, and the average."""
    return sum(p.numel() for p in head.parameters()) * 4 * (3 + ema)


def save(
    folder: Path,
    progress: Progress,
    head: nn.Module,
    optimizer: torch.optim.Optimizer,
    ema: Ema | None,
    **extra: object,
) -> None:
    state = {
        "progress": vars(progress),
        "head": head.state_dict(),
        "optimizer": optimizer.state_dict(),
        "ema": ema.tensors if ema else None,
        **extra,
    }
    partial = folder / f"{FILE}.partial"
    torch.save(state, partial)
    os.replace(partial, folder / FILE)  # readers see the old file or the new one, never half of one


def load(folder: Path) -> dict | None:
    """The checkpoint of this folder, None if there is none yet."""
    path = folder / FILE
    return torch.load(path, map_location="cpu", weights_only=True) if path.exists() else None


def restore(
    state: dict, head: nn.Module, optimizer: torch.optim.Optimizer, ema: Ema | None, config: AnyHead
) -> Progress:
    """Put weights back and return the position. TrainError if the checkpoint is of another head."""
    # Fields that a config has gained since then have a default.
    defaults = {name: f.default for name, f in type(config).model_fields.items() if not f.is_required()}
    if defaults | state["head_config"] != config.model_dump():
        raise TrainError(
            f"the checkpoint is of another head, {state['head_config']}, not {config.model_dump()}: "
            "set `work` or fit.folder to a new folder, or remove the checkpoint"
        )
    head.load_state_dict(state["head"])
    optimizer.load_state_dict(state["optimizer"])
    if ema is not None and state["ema"] is not None:
        for name, tensor in state["ema"].items():
            ema.tensors[name].copy_(tensor)
    return Progress(**state["progress"])
