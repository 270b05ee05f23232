"""`jetspec train`: from a target to a head that serves, in three stages that can each be run and resumed."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Console


class Stage(StrEnum):
    DATA = "data"
    FIT = "fit"
    EXPORT = "export"


def train(
    config: Annotated[Path, typer.Option(help="YAML or JSON file, see examples/train/.")],
    stage: Annotated[Stage | None, typer.Option(help="One stage only; all in order if left out.")] = None,
    worker: Annotated[int, typer.Option(help="Data stage: number of this process.")] = 0,
    workers: Annotated[int, typer.Option(help="Data stage: processes that share the work.")] = 1,
) -> None:
    """Generate answers of the target, fit a head to them, and export it in the published format."""
    from jetspec_sglang.drafters.training.config import load_config

    from .builtin.target import builtin_target

    console = Console()
    try:
        settings = load_config(config)
    except (OSError, ValidationError) as error:
        console.print(f"[red]{config}: {error}[/]")
        raise typer.Exit(1) from None
    if settings.fit.target == Path("builtin"):
        settings = settings.model_copy(
            update={"fit": settings.fit.model_copy(update={"target": builtin_target()})}
        )
    stages = [stage] if stage else list(Stage)
    if Stage.DATA in stages:
        _data(settings, worker, workers, console)
    if Stage.FIT in stages:
        _fit(settings, console)
    if Stage.EXPORT in stages:
        from jetspec_sglang.drafters.training.export import export

        console.print(f"head: {export(settings.fit.output, settings.export)}")


def _data(settings, worker: int, workers: int, console: Console) -> None:
    from jetspec_sglang.drafters.training.data import DataStage

    fit = settings.fit
    stage = DataStage(fit.target, fit.data, list(settings.target_layer_ids), settings.max_new_tokens)

    def report(done: int, rate: float) -> None:
        console.print(f"data: {done:,} of {settings.response_tokens:,} response tokens, {rate:.0f} a second")

    stage.run(settings.response_tokens, worker, workers, fit.seed, report)


def _fit(settings, console: Console) -> None:
    from jetspec_sglang.drafters.training.fit import fit

    fit(settings.fit, progress=lambda record: console.print_json(data=record, indent=None))
