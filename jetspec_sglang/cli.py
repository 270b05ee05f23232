"""``jetspec``: one small program for everything a user does besides starting a server.

A command is a function with typer annotations, in a module of its own. It is imported when it is run, so that
``jetspec --help`` answers at once; what the help shows stands in the table here.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True)
class Command:
    """Where a command's function is, as ``module:function``, and its line in the help."""

    target: str
    help: str


# The one place to add a command.
COMMANDS = {
    "check": Command(
        "jetspec_sglang.check:check", "Check environment, SGLang and, if given, a head and its target."
    ),
    "demo": Command("jetspec_sglang.demo:demo", "Serve a small model plainly and with JETSPEC, and compare."),
    "train": Command(
        "jetspec_sglang.train:train", "Train a head: answers of the target, fit, export; see examples/train/."
    ),
    "eval": Command("jetspec_sglang.eval:evaluate", "Measure accept length and speed of a head by budget."),
}


class LazyGroup(TyperGroup):
    """The commands of the table. Listing them takes the table alone; only a chosen one is imported."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, name: str) -> Any:
        return TyperCommand(name, help=COMMANDS[name].help) if name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, load(name) if name in COMMANDS else command, rest


def load(name: str) -> Any:
    """The real command, with its options."""
    module, _, function = COMMANDS[name].target.partition(":")
    app = typer.Typer(add_completion=False)
    app.command(name)(getattr(import_module(module), function))
    return typer.main.get_command(app)


app = typer.Typer(
    name="jetspec",
    cls=LazyGroup,
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def jetspec() -> None:
    """JetSpec: tree speculative decoding for SGLang.

    A server is started with SGLang itself: python -m sglang.launch_server --speculative-algorithm JETSPEC …
    """


def main() -> None:
    app()
