"""`jetspec quality`: what heads rank first and what the target thinks of it, at the same prefixes; what drafting costs.

The analysis is `drafters.quality`, in plain torch and transformers: no server is started. This file is the command,
what the user asks for and what is written; `quality_tables`, `quality_plot` and `quality_page` show the results.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from .builtin.prompts import load_prompts, mixed
from .compare import (
    CompareError,
    Dtype,
    ending_cleanly,
    model_folders,
    read_head,
    terminal,
    waiting,
    writable,
)
from .figures import drawable, require_matplotlib, save

if TYPE_CHECKING:
    from .drafters.head_config import AnyHead
    from .drafters.quality.rows import Measured

BUILTIN = "built-in"  # label of the head where the user names none


def quality(
    heads: Annotated[
        str | None, typer.Option(help="LABEL=FOLDER,… of one target (default: the built-in head).")
    ] = None,
    target: Annotated[Path | None, typer.Option(help="Model folder (default: the built-in model).")] = None,
    prompts: Annotated[
        Path | None, typer.Option(help='JSONL rows {"turns": ["…"], "domain": "…"} (default: built in).')
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many prompts, from all domains.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of an answer, a block apart.")] = 4,
    budget: Annotated[int, typer.Option(min=2, help="Nodes of the tree, root included.")] = 64,
    cost: Annotated[bool, typer.Option(help="Also time drafts and target passes.")] = True,
    dtype: Annotated[Dtype, typer.Option(help="Of weights and arithmetic.")] = Dtype.float32,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every round to this file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a report page to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the results: FILE.svg or FILE.png.")] = None,
) -> None:
    """Compare heads of one target by their likeliest blocks (the JetSpec paper's appendix A) and their cost (G).

    All heads draft behind the same prefixes of the target's greedy answers.
    """
    console = terminal()
    with ending_cleanly("jetspec quality"):
        for file in (json_file, html):
            writable(file)
        drawable(plot)
        if html:
            require_matplotlib()
        chosen = load_prompts(prompts)
        if limit:
            chosen = mixed(chosen, limit)
        target, folders = _folders(parse_heads(heads), target)

        from .quality_run import Request, measure

        request = Request(target, folders, chosen, rounds, budget, cost, dtype.value)
        measured = measure(request, lambda what: waiting(console, what))
        show(console, measured, json_file, html, plot)


def parse_heads(text: str | None) -> dict[str, Path | None]:
    """`"a=DIR,b=DIR"` → folders by label; the built-in head (None) where there is no text.

    Raises:
        CompareError: something else, or a label twice.
    """
    if text is None:
        return {BUILTIN: None}
    found: dict[str, Path | None] = {}
    for part in text.split(","):
        label, equals, folder = part.partition("=")
        if not (label and equals and folder):
            raise CompareError(
                f"--heads has {part!r}; write LABEL=FOLDER, several of them with commas between."
            )
        if label in found:
            raise CompareError(f"--heads names {label} twice; give every head a label of its own.")
        found[label] = Path(folder).expanduser()
    return found


def _folders(asked: dict[str, Path | None], target: Path | None) -> tuple[Path, dict[str, Path]]:
    """The target's folder and those of the heads, each checked against it."""
    heads = {}
    for label, own in asked.items():
        folder, heads[label] = model_folders(target, own)
    same_vocabulary({label: read_head(head) for label, head in heads.items()})
    return folder, heads


def same_vocabulary(heads: dict[str, AnyHead]) -> None:
    """Raise CompareError unless all heads draft from as many tokens."""
    from .drafters.quality.heads import draft_vocabulary

    sizes = {label: draft_vocabulary(head) for label, head in heads.items()}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{label} from {size}" for label, size in sizes.items())
        raise CompareError(
            f"The heads draft from different numbers of tokens ({listed}), over which their probabilities add up to "
            "1, so gaps don't compare; measure them one by one."
        )


def show(
    console: Console, measured: Measured, json_file: Path | None, html: Path | None, plot: Path | None
) -> None:
    """Everything that the user asked to see, from the raw results alone."""
    from .drafters.quality.summary import gaps, pairs
    from .quality_tables import sheets

    for sheet in sheets(measured):
        console.print(sheet.rich())
    if json_file:
        summary = {"gaps": list(map(asdict, gaps(measured))), "pairs": list(map(asdict, pairs(measured)))}
        result = {"summary": summary, **measured.model_dump()}
        json_file.write_text(json.dumps(result, ensure_ascii=False) + "\n", encoding="utf-8")
    if html:
        from .quality_page import page

        html.write_text(page(measured), encoding="utf-8")
    if plot:
        from .quality_plot import figure

        save(figure(measured), plot)
