"""``jetspec bench acceptance``: accept length of the rules for sampled requests, and what they cost.

One server, one request at a time; the configurations take turns on every prompt. The raw file has one line an
answer, and every number of the table follows from it: ``--from FILE`` computes it again, without a server.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import track
from rich.table import Table

from .builtin.prompts import Prompt, load_prompts, mixed
from .client import jetspec_state
from .compare import (
    Chat,
    alternating,
    ask,
    common_flags,
    ending_cleanly,
    jetspec_flags,
    model_folders,
    terminal,
    writable,
)
from .eval_run import grown
from .machine import describe
from .serving import Server
from .tree import ACCEPTANCES
from .tree_settings import KEY

TWO_MESSAGES = 1 << 20  # stream interval: the first token and the end


@dataclass(frozen=True)
class Answered:
    """One answer. Rounds and accepted drafts are its own; seconds by stage are the server's, summed over rounds."""

    rule: str
    temperature: float
    budget: int
    prompt: int
    domain: str
    sample: int
    completion_tokens: int
    rounds: int
    accepted_drafts: int
    decoded: int
    decode_seconds: float
    stage_seconds: dict[str, float]

    @property
    def cell(self) -> tuple[float, int, str]:
        return self.temperature, self.budget, self.rule


@dataclass(frozen=True)
class Cell:
    """All answers of one configuration. `error`: standard error of τ, relative to τ."""

    tau: float
    error: float
    rounds: int
    tokens_per_second: float
    round_ms: float
    rule_ms: float  # build and accept: the stages in which rules differ


def acceptance(
    temperatures: Annotated[str, typer.Option(help="Temperatures.")] = "0.6,1",
    budgets: Annotated[str, typer.Option(help="Nodes of a tree, root included.")] = "16,64",
    samples: Annotated[int, typer.Option(min=2, help="Answers to each prompt and configuration.")] = 4,
    limit: Annotated[int, typer.Option(min=1, help="Prompts.")] = 12,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Tokens an answer.")] = 128,
    target: Annotated[Path | None, typer.Option(help="Model folder; the built-in one if left out.")] = None,
    head: Annotated[Path | None, typer.Option(help="Head folder; the built-in one if left out.")] = None,
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
    jsonl: Annotated[Path | None, typer.Option(help="Where the raw rows go.")] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="Show a raw file again; nothing is measured.")
    ] = None,
) -> None:
    """Compare match, rejection and traversal on a model: accept length, its error, and speed."""
    with ending_cleanly("jetspec bench acceptance"):
        if source:
            rows = [Answered(**json.loads(line)) for line in source.read_text().splitlines()[1:]]
            terminal().print(table(rows))
            return
        writable(jsonl)
        configurations = [
            (float(t), int(n), rule)
            for t, n, rule in product(temperatures.split(","), budgets.split(","), ACCEPTANCES)
        ]
        prompts = mixed(load_prompts(), limit)
        folders = model_folders(target, head)
        settings = {"max_new_tokens": max_new_tokens, "dtype": dtype, "samples": samples}
        rows = []
        most = max(budget for _, budget, _ in configurations)
        flags = [*common_flags(folders[0], dtype), *jetspec_flags(folders[1], most)]
        with ExitStack() as stack:
            file = stack.enter_context(jsonl.open("w")) if jsonl else None

            def write(row: dict[str, Any]) -> None:
                if file:
                    print(json.dumps(row), file=file, flush=True)

            write({"machine": describe(), "settings": settings})
            server = stack.enter_context(Server(flags))
            measured = measure(server, Chat(folders[0]), prompts, configurations, samples, max_new_tokens)
            total = len(prompts) * samples * len(configurations)
            for row in track(measured, total=total, description="answers", transient=True):
                rows.append(row)
                write(asdict(row))
        terminal().print(table(rows))


def measure(
    server: Server,
    chat: Chat,
    prompts: Sequence[Prompt],
    configurations: Sequence[tuple[float, int, str]],
    samples: int,
    max_new_tokens: int,
) -> Iterator[Answered]:
    """The first turn of every prompt to every configuration, `samples` times, by turns."""
    state = jetspec_state(server.info(), server.url)
    turns = [(number, sample) for sample in range(samples) for number in range(len(prompts))]
    for asked, (number, sample) in enumerate(turns):
        tokens = chat.tokens(prompts[number].turns[:1])
        for temperature, budget, rule in alternating(configurations, asked):
            answer = ask(
                server,
                tokens,
                max_new_tokens,
                stream_interval=TWO_MESSAGES,
                temperature=temperature,
                custom_params={KEY: {"budget": budget, "acceptance": rule}},
            )
            before, state = state, jetspec_state(server.info(), server.url)
            yield Answered(
                rule=rule,
                temperature=temperature,
                budget=budget,
                prompt=number,
                domain=prompts[number].domain,
                sample=sample,
                completion_tokens=len(answer.token_ids),
                rounds=answer.rounds,
                accepted_drafts=answer.accepted_drafts,
                decoded=answer.decoded,
                decode_seconds=answer.decode_seconds,
                stage_seconds=grown(before, state)[0],
            )


def summary(rows: Sequence[Answered]) -> dict[tuple[float, int, str], Cell]:
    """By (temperature, budget, rule). The error is over the samples of each prompt; the prompts are fixed."""
    cells = defaultdict(list)
    for row in rows:
        cells[row.cell].append(row)
    return {key: _cell(answers) for key, answers in sorted(cells.items())}


def _cell(answers: list[Answered]) -> Cell:
    rounds = sum(row.rounds for row in answers)
    drafts_a_round = sum(row.accepted_drafts for row in answers) / rounds
    by_prompt: dict[int, list[float]] = defaultdict(list)
    for row in answers:  # what an answer adds to the ratio's deviation
        by_prompt[row.prompt].append(row.accepted_drafts - drafts_a_round * row.rounds)
    variance = 0.0
    for values in by_prompt.values():
        mean, count = sum(values) / len(values), len(values)
        variance += sum((value - mean) ** 2 for value in values) * count / max(count - 1, 1)
    tau = 1 + drafts_a_round
    stages = {name: sum(row.stage_seconds[name] for row in answers) for name in answers[0].stage_seconds}
    return Cell(
        tau=tau,
        error=math.sqrt(variance) / rounds / tau,
        rounds=rounds,
        tokens_per_second=sum(row.decoded for row in answers) / sum(row.decode_seconds for row in answers),
        round_ms=sum(stages.values()) / rounds * 1e3,
        rule_ms=(stages["build"] + stages["accept"]) / rounds * 1e3,
    )


def table(rows: Sequence[Answered]) -> Table:
    """One line a configuration; gains are relative to `match` at the same temperature and budget."""
    cells = summary(rows)
    shown = Table(
        "T", "nodes", "rule", "τ", "± 1 s.e.", "τ / match", "tok/s", "round", "build + accept", "rounds"
    )
    for (temperature, budget, rule), cell in cells.items():
        base = cells.get((temperature, budget, "match"))
        shown.add_row(
            f"{temperature:g}",
            str(budget),
            rule,
            f"{cell.tau:.3f}",
            f"{100 * cell.error:.1f} %",
            f"{cell.tau / base.tau:.3f}" if base else "",
            f"{cell.tokens_per_second:.1f}",
            f"{cell.round_ms:.1f} ms",
            f"{cell.rule_ms:.1f} ms",
            str(cell.rounds),
        )
    return shown
