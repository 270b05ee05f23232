"""`jetspec eval`: accept length and speed of heads × expansions × scoring policies × budgets, or under load.

This file is the command: what the user asks for, checked before anything is started, and what is written.
`eval_grid` makes the configurations, `eval_run` measures them, `eval_rows` computes, `eval_report` and
`eval_plot` show. `eval_load` is all of that for `--concurrency`.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from . import eval_load, eval_report
from .builtin.prompts import load_prompts, mixed
from .compare import (
    Chat,
    CompareError,
    Dtype,
    ending_cleanly,
    model_folders,
    read_head,
    target_folder,
    terminal,
    writable,
)
from .config import MAX_BUDGET, SUFFIX
from .drafters.registry import DRAFTERS
from .eval_grid import (
    Configuration,
    grid,
    parse_acceptances,
    parse_drafters,
    parse_expansions,
    parse_numbers,
    parse_scorings,
)
from .eval_rows import Measurement, parse_rows, read_raw
from .eval_run import Head, Setting, run
from .figures import drawable
from .machine import describe

TREES, LOAD = "trees", "load"


@dataclass(frozen=True)
class Kind:
    """How rows of one kind are read and shown."""

    of_row: Callable[..., Any]
    show: Callable[..., None]


KINDS = {
    TREES: Kind(Measurement.of_row, eval_report.show),
    LOAD: Kind(eval_load.Served.of_row, eval_load.show),
}
HEAD_ITSELF: tuple[str, str, Path | None] = (
    "",
    "",
    None,
)  # label, drafter and folder where the user names none
NOT_UNDER_LOAD = ("expansions", "scoring", "eager_width", "acceptance")


def evaluate(
    context: typer.Context,
    drafters: Annotated[
        str | None,
        typer.Option(
            help="Several: NAME[+suffix][=FOLDER],… (default: --head, served as what it was trained for). "
            "suffix drafts without a head, and +suffix grafts its branches onto a head's trees."
        ),
    ] = None,
    budgets: Annotated[str, typer.Option(help="Budgets: nodes of a tree, root included.")] = "16,64",
    expansions: Annotated[str, typer.Option(help="Any of chain,eager,optimal.")] = "chain,eager,optimal",
    scoring: Annotated[
        list[str], typer.Option(help="Policies like accum_logp,entropy,hybrid:alpha=0.5; also several times.")
    ] = ["accum_logp"],  # noqa: B006  typer reads it, nobody writes it
    eager_width: Annotated[
        int, typer.Option(min=1, max=64, help="Most children of a node in eager trees (7 in the paper).")
    ] = 7,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0,
    acceptance: Annotated[
        str | None, typer.Option(help="Any of match,rejection,traversal; needs a temperature.")
    ] = None,
    concurrency: Annotated[
        str | None,
        typer.Option(help="Throughput at 1,2,4,… requests at once: plain, --budgets, adaptive, bandit."),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="How often to ask everything; the median counts.")] = 1,
    dtype: Annotated[Dtype, typer.Option(help="Of weights and arithmetic.")] = Dtype.bfloat16,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Length limit of an answer.")] = 128,
    prompts: Annotated[
        Path | None, typer.Option(help='JSONL rows {"turns": ["…"], "domain": "…"} (default: built in).')
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many prompts, from all domains.")] = None,
    target: Annotated[Path | None, typer.Option(help="Model folder (default: the built-in model).")] = None,
    head: Annotated[Path | None, typer.Option(help="Draft head folder (default: the built-in head).")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the table to this file.")] = None,
    jsonl: Annotated[Path | None, typer.Option(help="Write a row for each answer to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the results: FILE.svg or FILE.png.")] = None,
    from_file: Annotated[
        Path | None, typer.Option("--from", help="Measure nothing: table, --json, --plot of a --jsonl file.")
    ] = None,
) -> None:
    """Measure accept length and speed of draft heads: chains and trees of several budgets beside plain decoding.

    The paper's trees are eager with width 7; optimal ones are the default of the server.
    """
    console = terminal()
    with ending_cleanly("jetspec eval"), ExitStack() as stack:
        for file in (json_file, jsonl):
            writable(file)
        drawable(plot)
        if from_file:
            if jsonl:
                raise CompareError("--from measures nothing that --jsonl could write; leave one of them out.")
            described, rows = read_raw(from_file)
            kind = KINDS[described.get("kind", TREES)]
            kind.show(console, described, parse_rows(from_file, rows, kind.of_row), json_file, plot)
            return

        chosen = load_prompts(prompts)
        chosen = mixed(chosen, limit or len(chosen))
        nodes = parse_numbers("--budgets", budgets)
        asked = parse_drafters(drafters, DRAFTERS) if drafters else [HEAD_ITSELF]
        policies, wanted = parse_scorings(scoring), parse_expansions(expansions)
        acceptances = parse_acceptances(acceptance, temperature)
        at_once = parse_numbers("--concurrency", concurrency) if concurrency else []
        if at_once:
            _check_load(context, at_once, len(asked), len(chosen))

        bar = stack.enter_context(_progress(console))
        say = _sayer(bar)
        say("Preparing the model")
        target, heads = _heads(asked, target, head)
        setting = Setting(target, dtype.value, max_new_tokens, temperature, repeats, eager_width)
        chat = Chat(target)
        measured: Iterator[Any]
        if at_once:
            measured = eval_load.run(heads[0], nodes, at_once, chosen, chat, setting, say)
        else:
            blocks = {h: _grid(h, nodes, wanted, policies, acceptances) for h in heads}
            measured = run(blocks, chosen, chat, setting, say)
        described = {
            "kind": LOAD if at_once else TREES,
            "machine": describe(),
            "target": target.name,
            "heads": {h.label: h.folder.name if h.folder else "no head" for h in heads},
            "prompts": len(chosen),
            **{key: value for key, value in asdict(setting).items() if key != "target"},
        }
        kept = _keep(measured, described, jsonl)
        bar.stop()
        KINDS[described["kind"]].show(console, described, kept, json_file, plot)


def _heads(
    asked: list[tuple[str, str, Path | None]], target: Path | None, head: Path | None
) -> tuple[Path, list[Head]]:
    """The target's folder and the heads, each checked against it."""
    heads = []
    for label, name, own in asked:
        drafter, _, graft = name.partition("+")
        if drafter == SUFFIX:
            folder = target_folder(target)
            heads.append(Head(label, drafter, None, MAX_BUDGET))
            continue
        folder, head_folder = model_folders(target, own or head)
        kind = read_head(head_folder)
        length = MAX_BUDGET if graft else kind.block_size
        heads.append(
            Head(label or kind.drafter, drafter or kind.drafter, head_folder, length, graft or "none")
        )
    return folder, heads


def _grid(
    head: Head, budgets: list[int], expansions: list[str], policies: list[str], acceptances: list[str]
) -> list[Configuration]:
    """What a head is measured with; one with retrieval has fewer choices.

    Raises:
        CompareError: it has none of the expansions that are asked for.
    """
    if head.retrieves:
        expansions = [name for name in expansions if name == "optimal"]
        policies, acceptances = ["accum_logp"], ["match"] if acceptances else []
        if not expansions:
            raise CompareError(f"{head.label} builds optimal trees only; add optimal to --expansions.")
    return grid(head.label, head.block_length, budgets, expansions, policies, acceptances)


def _check_load(context: typer.Context, at_once: list[int], heads: int, prompts: int) -> None:
    for name in NOT_UNDER_LOAD:
        if (source := context.get_parameter_source(name)) and source.name == "COMMANDLINE":
            option = name.replace("_", "-")
            raise CompareError(f"--concurrency compares budgets only; leave --{option} out.")
    if heads > 1:
        raise CompareError("--concurrency compares budgets of one head; name one in --drafters.")
    if max(at_once) > prompts:
        raise CompareError(
            f"{max(at_once)} requests at once need as many prompts, but there are {prompts}; raise --limit, "
            "give more --prompts or a smaller --concurrency."
        )


def _keep(measured: Iterable[Any], described: dict[str, Any], jsonl: Path | None) -> list[Any]:
    """All of `measured`; each is written as it comes, so that an interrupted run leaves what it had."""
    if jsonl is None:
        return list(measured)
    kept = []
    with jsonl.open("w", encoding="utf-8") as raw:
        print(json.dumps({"run": described}), file=raw, flush=True)
        for m in measured:
            kept.append(m)
            print(json.dumps(m.row()), file=raw, flush=True)
    return kept


def _sayer(bar: Progress) -> Callable[[str], None]:
    """Shows what is going on: on the progress bar, or as lines where there is no terminal."""
    task = bar.add_task("")

    def say(text: str) -> None:
        if bar.tasks[task].description != text and not bar.console.is_terminal:
            bar.console.print(text, highlight=False)
        bar.update(task, description=text)

    return say


def _progress(console: Console) -> Progress:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
