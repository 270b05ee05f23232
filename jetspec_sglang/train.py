"""`jetspec train`: from a target to a head that serves, in four stages that can each be run and resumed."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console

from .cpu.spin import spin_little
from .train_progress import Bar, FitBar
from .train_status import show_status

if TYPE_CHECKING:
    from jetspec_sglang.drafters.training.config import TrainConfig


class Stage(StrEnum):
    DATA = "data"
    FEATURES = "features"
    FIT = "fit"
    EXPORT = "export"


def train(
    config: Annotated[Path, typer.Option(help="YAML, TOML or JSON file, see examples/train/.")],
    stage: Annotated[Stage | None, typer.Option(help="One stage only; all in order if left out.")] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override a setting; may be repeated."),
    ] = None,
    status: Annotated[
        bool, typer.Option("--status", help="Show what each stage has, and do nothing.")
    ] = False,
    worker: Annotated[int, typer.Option(help="Data stage: number of this process.")] = 0,
    workers: Annotated[int, typer.Option(help="Data stage: processes that share the work.")] = 1,
) -> None:
    """Generate answers of the target, take its features, fit a head to them, and export it.

    Each stage goes on where it was stopped. On several GPUs: torchrun --nproc-per-node N --no-python
    jetspec train --stage fit --config FILE.
    """
    spin_little()  # before torch is loaded
    from jetspec_sglang.drafters.training.config import load_config
    from jetspec_sglang.drafters.training.errors import TrainError

    from .builtin.target import BuiltinTargetError, target_place

    console = Console()
    try:
        settings = load_config(config, changes or [])
        if status:
            show_status(settings, console)
            return
        target = target_place(settings.target)
        require_capture(target)
        require_head(settings, target)
        for each in [stage] if stage else list(Stage):
            if each is Stage.DATA:
                _data(settings, target, worker, workers, console)
            elif each is Stage.FEATURES:
                _features(settings, target, console)
            elif each is Stage.FIT:
                _fit(settings, target, console)
            else:
                _export(settings, console)
    except ValidationError as error:
        for fault in error.errors():
            where = ".".join(map(str, fault["loc"])) or "settings"
            _complain(console, f"{config}: {where}: {fault['msg']}")
        raise typer.Exit(1) from None
    except (TrainError, BuiltinTargetError) as error:
        _complain(console, str(error))
        raise typer.Exit(1) from None
    except ModuleNotFoundError as error:
        _complain(console, f"{error.name} is not installed: pip install 'jetspec-sglang[train]'")
        raise typer.Exit(1) from None


def _complain(console: Console, message: str) -> None:
    console.print(message, style="red", markup=False, highlight=False)


def require_capture(target: str) -> None:
    """Raise TrainError unless SGLang's class of the target can show its layers to a head."""
    from transformers import AutoConfig

    from jetspec_sglang.drafters.training.errors import TrainError

    from .refusals.launch import CAPTURE_METHOD, can_capture

    try:
        names = AutoConfig.from_pretrained(target).architectures or []
    except (OSError, ValueError) as error:
        raise TrainError(f"target {target} is not a model within reach: {error}") from error
    if not any(can_capture(name) for name in names):
        raise TrainError(
            f"SGLang's model class of {target}, {', '.join(names) or 'unknown'}, has no {CAPTURE_METHOD}: a head for "
            "it could be trained but not served. Take a target whose class has it, such as LlamaForCausalLM or "
            "Qwen3ForCausalLM"
        )


def require_head(settings: TrainConfig, target: str) -> None:
    """Raise TrainError, before any stage has cost time, for a head that can't be, or one to start from that isn't."""
    from transformers import AutoConfig

    from jetspec_sglang.drafters.checkpoint import HeadError, read_head_config
    from jetspec_sglang.drafters.training.errors import TrainError
    from jetspec_sglang.drafters.training.student import head_config
    from jetspec_sglang.drafters.training.target import target_layer_ids

    shape = AutoConfig.from_pretrained(target)
    head_config(settings.head, shape, target_layer_ids(settings, shape))
    try:
        if settings.fit.start:
            read_head_config(settings.fit.start)
    except HeadError as error:
        raise TrainError(f"fit.start: {error}") from error


def _data(settings: TrainConfig, target: str, worker: int, workers: int, console: Console) -> None:
    from jetspec_sglang.drafters.training.data import DataStage

    with _generator(settings, target) as generator:
        stage = DataStage(settings, target, generator)
        with Bar(console, "data", settings.data.response_tokens, "response tokens") as bar:
            stage.run(worker, workers, lambda done, rate: bar.show(done, f"{rate:,.0f} a second"))


def _generator(settings: TrainConfig, target: str) -> AbstractContextManager[Any]:
    import torch
    from transformers import AutoConfig

    from jetspec_sglang.drafters.training.generate import TransformersGenerator
    from jetspec_sglang.drafters.training.target import target_layer_ids

    from .train_engine import EngineGenerator

    chosen = settings.data.generator
    if chosen == "sglang" or (chosen == "auto" and torch.cuda.is_available()):
        return EngineGenerator(target)
    taps = target_layer_ids(settings, AutoConfig.from_pretrained(target))
    return nullcontext(TransformersGenerator(target, taps))


def _features(settings: TrainConfig, target: str, console: Console) -> None:
    from jetspec_sglang.drafters.training import features

    if settings.features.mode == "online":
        console.print("features: online, `fit` computes them itself")
        return
    waiting = len(features.pending(settings))
    if not waiting:
        features.run(settings, target)  # says what is missing if there is no data at all
        console.print(f"features: all there, in {settings.features_folder}")
        return
    with Bar(console, "features", waiting, "shards") as bar:
        features.run(settings, target, lambda done, _: bar.show(done, ""))


def _fit(settings: TrainConfig, target: str, console: Console) -> None:
    from jetspec_sglang.drafters.training import fit

    with FitBar(console) as bar:
        fit.run(settings, target, bar.show)
    console.print(f"fit: checkpoint and metrics in {settings.run_folder}")


def _export(settings: TrainConfig, console: Console) -> None:
    from jetspec_sglang.drafters.training.export import export

    console.print(f"export: head in {export(settings)}")
