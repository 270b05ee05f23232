"""`jetspec tree`: ask a JETSPEC server something and look at the token trees that it verified on the way."""

import json
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from .ceiling import ceiling
from .client import jetspec_state, post, server_info
from .compare import (
    CompareError,
    Dtype,
    common_flags,
    ending_cleanly,
    jetspec_flags,
    model_folders,
    start_all,
    terminal,
    waiting,
    writable,
)
from .figures import drawable, save
from .serving import Server, stopping
from .tree.draw import DrawnRound, label
from .tree.draw_text import LEGEND, text_tree
from .tree_settings import KEY

# Where an option of ours goes when this command starts the server.
SERVER_FLAGS = {
    "depth": "--speculative-num-steps",
    "width": "--speculative-eagle-topk",
    "scoring": "--jetspec-scoring",  # one that reads a file can't come with a request alone
}


@dataclass(frozen=True)
class TracedAnswer:
    """An answer and the rounds that made it, in order; `texts` of every token in them."""

    text: str
    completion_tokens: int
    trace: list[dict[str, Any]]
    rounds: list[DrawnRound]
    texts: dict[int, str]
    depth: int

    @property
    def histogram(self) -> dict[int, int]:
        return dict(Counter(drawn.accepted for drawn in self.rounds))

    @property
    def tau(self) -> float:
        return mean(len(drawn.committed) for drawn in self.rounds)

    def most_accepted(self) -> int:
        """The round that is most worth a look; the first of equals."""
        return max(range(len(self.rounds)), key=lambda number: self.rounds[number].accepted)

    def labels(self, number: int) -> tuple[list[str], str]:
        """Of the nodes of round `number`, and of its bonus token."""
        drawn = self.rounds[number]
        bonus = "" if drawn.bonus is None else label(self.texts[drawn.bonus], drawn.bonus)
        return [label(self.texts[token], token) for token in drawn.tokens], bonus

    def title(self, number: int) -> str:
        drawn = self.rounds[number]
        drafts = "1 draft" if drawn.accepted == 1 else f"{drawn.accepted} drafts"
        return f"round {number + 1} of {len(self.rounds)}: {drawn.size} nodes, {drafts} accepted"


def tree(
    prompt: Annotated[str, typer.Argument(help="What to ask.")],
    url: Annotated[
        str | None,
        typer.Option(help="A running JETSPEC server (default: start one with the built-in model)."),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Send the prompt without the chat template.")] = False,
    budget: Annotated[int, typer.Option(min=1, help="Nodes of a tree, root included.")] = 16,
    depth: Annotated[int | None, typer.Option(min=1, help="Most drafts of a round.")] = None,
    width: Annotated[int | None, typer.Option(min=1, help="Most children of a node.")] = None,
    expansion: Annotated[str | None, typer.Option(help="optimal or eager (default: the server's).")] = None,
    scoring: Annotated[
        str | None, typer.Option(help="Policy like hybrid:alpha=0.5 (default: the server's).")
    ] = None,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0,
    acceptance: Annotated[
        str | None,
        typer.Option(help="match, rejection or traversal, at a temperature (default: the server's)."),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Length limit of the answer.")] = 64,
    round_number: Annotated[
        int | None, typer.Option("--round", min=1, help="Which round to draw (default: most accepted nodes).")
    ] = None,
    svg: Annotated[Path | None, typer.Option(help="Draw the round's tree to this file.")] = None,
    png: Annotated[Path | None, typer.Option(help="Draw the round's tree to this file.")] = None,
    heatmap: Annotated[
        Path | None, typer.Option(help="Map all rounds by depth and sibling rank: FILE.svg or FILE.png.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write answer and trace to this file.")
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="Of weights and arithmetic.")] = Dtype.bfloat16,
    target: Annotated[Path | None, typer.Option(help="Model folder (default: the built-in model).")] = None,
    head: Annotated[Path | None, typer.Option(help="Draft head folder (default: the built-in head).")] = None,
) -> None:
    """Draw the token tree of one round: what the drafter proposed, and what the target accepted."""
    console = terminal()
    with ending_cleanly("jetspec tree"), ExitStack() as stack:
        writable(json_file)
        for file, suffix in ((svg, ".svg"), (png, ".png")):
            if file is not None and file.suffix.lower() != suffix:
                raise CompareError(f"--{suffix[1:]} is {file}; give it a name in {suffix}.")
            drawable(file)
        drawable(heatmap)
        if url and (target or head):
            raise CompareError("--url uses a server as it runs; leave --target and --head out.")
        given = {
            **{"budget": budget, "depth": depth, "width": width},
            **{"expansion": expansion, "scoring": scoring, "acceptance": acceptance},
        }
        settings = {name: value for name, value in given.items() if value is not None}
        if not url:
            url = stack.enter_context(_server(console, (target, head), dtype.value, settings)).url
        with waiting(console, "Asking"):
            answer = ask_traced(url, prompt, raw, settings, temperature, max_new_tokens)
        if round_number is not None and round_number > len(answer.rounds):
            raise CompareError(f"--round is {round_number}, but the answer took {len(answer.rounds)} rounds.")
        number = answer.most_accepted() if round_number is None else round_number - 1
        show(console, answer, number)
        _write(answer, number, prompt, settings, [f for f in (svg, png) if f], heatmap, json_file)


def ask_traced(
    url: str, prompt: str, raw: bool, settings: dict[str, Any], temperature: float, max_new_tokens: int
) -> TracedAnswer:
    """One answer with the trace of its rounds.

    Raises:
        CompareError: no JETSPEC server, a setting that it refuses, or no round: the first token ended the answer.
    """
    info = server_info(url)
    jetspec_state(info, url)
    question = {"prompt": prompt} if raw else {"messages": [{"role": "user", "content": prompt}]}
    rid = f"jetspec-tree-{uuid.uuid4().hex}"
    sampling = {
        "temperature": temperature,
        "max_new_tokens": max_new_tokens,
        "custom_params": {KEY: {**settings, "trace": True}},
    }
    request = {
        "input_ids": post(url, "/tokenize", question)["tokens"],
        "rid": rid,
        "sampling_params": sampling,
    }
    answer = post(url, "/generate", request)
    kept = jetspec_state(server_info(url), url).get("trace", [])
    trace = [row for row in kept if row["rid"] == rid]
    if not trace:
        raise CompareError("The answer ended with its first token, before any round; ask something else.")
    rounds = [DrawnRound.of_trace(row) for row in trace]
    tokens = sorted({token for drawn in rounds for token in (*drawn.tokens, *drawn.committed)})
    asked = {"tokens": [[token] for token in tokens], "skip_special_tokens": False}
    texts = post(url, "/detokenize", asked)["text"]
    return TracedAnswer(
        text=answer["text"],
        completion_tokens=answer["meta_info"]["completion_tokens"],
        trace=trace,
        rounds=rounds,
        texts=dict(zip(tokens, texts, strict=True)),
        depth=min(settings.get("depth", info["speculative_num_steps"]), settings["budget"] - 1),
    )


def show(console: Console, answer: TracedAnswer, number: int) -> None:
    """The answer, one of its trees, and what all rounds say."""
    labels, bonus = answer.labels(number)
    console.print(Text(answer.text.strip()), "")
    console.print(Text(answer.title(number), style="bold"))
    console.print(text_tree(answer.rounds[number], labels, bonus))
    console.print(Text(LEGEND, style="dim"), "")
    console.print(
        f"{answer.completion_tokens} tokens, τ {answer.tau:.2f} over {len(answer.rounds)} rounds.",
        highlight=False,
    )
    if missing := answer.trace[0]["round"]:
        console.print(
            f"The server keeps {len(answer.rounds)} rounds; the answer's first {missing} are gone.",
            highlight=False,
        )
    if answer.depth > 0:
        console.print(ceiling(answer.histogram, answer.depth).sentence(), highlight=False)


def _write(
    answer: TracedAnswer,
    number: int,
    prompt: str,
    settings: dict[str, Any],
    pictures: list[Path],
    heatmap: Path | None,
    json_file: Path | None,
) -> None:
    if pictures:
        from .tree.draw_figure import tree_figure

        figure = tree_figure(answer.rounds[number], *answer.labels(number), answer.title(number))
        for file in pictures:
            save(figure, file)
    if heatmap:
        from .tree.draw_heatmap import heatmap_figure

        title = f"{len(answer.rounds)} rounds of at most {settings['budget']} nodes, τ {answer.tau:.2f}"
        try:
            save(heatmap_figure(answer.rounds, title), heatmap)
        except ValueError as error:
            raise CompareError(f"--heatmap: {error}.") from error
    if json_file:
        result = {
            "prompt": prompt,
            "settings": settings,
            "text": answer.text,
            "tau": answer.tau,
            "drawn_round": number + 1,
            "texts": {str(token): text for token, text in answer.texts.items()},
            "trace": answer.trace,
        }
        json_file.write_text(json.dumps(result, ensure_ascii=False) + "\n", encoding="utf-8")


@contextmanager
def _server(
    console: Console, folders: tuple[Path | None, Path | None], dtype: str, settings: dict[str, Any]
) -> Iterator[Server]:
    """A JETSPEC server that allows these settings, until the end of the command."""
    target, head = model_folders(*folders)
    flags = [*common_flags(target, dtype), *jetspec_flags(head, settings["budget"])]
    for name, flag in SERVER_FLAGS.items():
        if name in settings:
            flags += [flag, str(settings[name])]
    server = Server(flags)
    with stopping(server):
        with waiting(console, "Starting a server"):
            start_all({"JETSPEC": server}, lambda names, seconds: None)
        yield server
    server.log.unlink(missing_ok=True)
