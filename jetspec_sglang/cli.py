"""``jetspec``: one small program for everything a user does besides starting a server.

A command is a function with typer annotations, in a module of its own. It is imported when it is run, so that
``jetspec --help`` answers at once; what the help shows stands in the table here.
"""

from __future__ import annotations

from collections.abc import Mapping
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


@dataclass(frozen=True)
class Group:
    """Commands under one name, ``jetspec GROUP COMMAND``, and the group's line in the help."""

    help: str
    commands: dict[str, Command]


# The one place to add a command.
COMMANDS: dict[str, Command | Group] = {
    "check": Command(
        "jetspec_sglang.check:check", "Check environment, SGLang and, if given, a head and its target."
    ),
    "demo": Command("jetspec_sglang.demo:demo", "Serve a small model plainly and with JETSPEC, and compare."),
    "train": Command(
        "jetspec_sglang.train:train", "Train a head: answers of the target, fit, export; see examples/train/."
    ),
    "eval": Command(
        "jetspec_sglang.eval:evaluate",
        "Measure accept length and speed of heads by tree, policy and budget, or under load.",
    ),
    "quality": Command(
        "jetspec_sglang.quality:quality",
        "Compare what heads rank first with what the target thinks of it, and what drafting costs.",
    ),
    "tree": Command(
        "jetspec_sglang.tree_command:tree", "Ask something and draw the token trees of the answer's rounds."
    ),
    "bench": Group(
        "Micro-benchmarks of the parts of a round.",
        {
            "tree": Command("jetspec_sglang.bench:tree", "Time the tree builders and their references."),
            "acceptance": Command(
                "jetspec_sglang.bench_acceptance:acceptance",
                "Accept length and cost of the acceptance rules for sampled requests.",
            ),
        },
    ),
    "loadtest": Group(
        "Load tests at request rates: one run, a sweep over servers, its report, its audit.",
        {
            "run": Command(
                "jetspec_sglang.loadtest_run:run", "One run against a server that is up: open or closed loop."
            ),
            "sweep": Command(
                "jetspec_sglang.loadtest_study:sweep",
                "Run a whole study from one config file; resumes where it stopped.",
            ),
            "report": Command(
                "jetspec_sglang.loadtest_study:report", "Write the report of a study: HTML, PNG, CSV, JSON."
            ),
            "audit": Command(
                "jetspec_sglang.loadtest_study:audit",
                "Recompute every published number from the raw files.",
            ),
        },
    ),
}

HELP = {"help_option_names": ["-h", "--help"]}


class LazyGroup(TyperGroup):
    """The commands of a table. Listing them takes the table alone; only a chosen one is imported."""

    def __init__(self, *, table: Mapping[str, Command | Group] = COMMANDS, **settings: Any) -> None:
        super().__init__(**settings)
        self.table = table

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: Any, name: str) -> Any:
        return TyperCommand(name, help=self.table[name].help) if name in self.table else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if name is None or name not in self.table:
            return name, command, rest
        return name, load(name, self.table[name]), rest


def load(name: str, entry: Command | Group) -> Any:
    """The real command with its options, or the group with its commands."""
    if isinstance(entry, Group):
        return LazyGroup(
            name=name, help=entry.help, table=entry.commands, no_args_is_help=True, context_settings=HELP
        )
    module, _, function = entry.target.partition(":")
    app = typer.Typer(add_completion=False)
    app.command(name)(getattr(import_module(module), function))
    return typer.main.get_command(app)


app = typer.Typer(
    name="jetspec",
    cls=LazyGroup,
    add_completion=False,
    no_args_is_help=True,
    context_settings=HELP,
)


@app.callback()
def jetspec() -> None:
    """JetSpec: tree speculative decoding for SGLang.

    A server is started with SGLang itself: python -m sglang.launch_server --speculative-algorithm JETSPEC …
    """


def main() -> None:
    app()
