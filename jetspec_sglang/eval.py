"""`jetspec eval`: accept length and speed of plain decoding, the chain and trees of several budgets.

One configuration at a time is served, beside a plain server that stays up for the whole run, and every prompt
goes to both by turns. So a speed-up is a ratio of interleaved measurements even where the machine gets slower
or faster during the run, and memory holds two servers, not one a configuration (each is three processes of
about 1 GB). The idle one of the two sleeps (`--sleep-on-idle`): by default its scheduler would poll without a
pause, which costs the other a core.

A later turn of a conversation is asked after the *plain* answers to the earlier ones, for all configurations:
so all get the same input even where bfloat16 made their answers differ.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from .builtin.prompts import Prompt, load_prompts, mixed
from .compare import (
    Chat,
    CompareError,
    Dtype,
    alternating,
    ask,
    common_flags,
    ending_cleanly,
    head_block_length,
    jetspec_flags,
    model_folders,
    start_all,
    terminal,
    writable,
)
from .eval_report import PLAIN, Configuration, Measurement, stage_shares, summarise, tables
from .machine import describe
from .serving import Server, stopping

WARM_UP, WARM_UP_TOKENS = "Name three colours.", 16
TWO_MESSAGES = 1 << 20  # stream interval: the first token and the end, so that streaming costs nothing


def configurations(budgets: list[int], block_length: int) -> list[Configuration]:
    """Plain decoding, the head's chain over its whole block, and a tree a budget."""
    trees = [Configuration("causal_parallel", "best-first", "accum_logp", budget) for budget in budgets]
    return [PLAIN, Configuration("causal_parallel", "chain", "none", block_length), *trees]


def server_flags(configuration: Configuration, head: Path) -> list[str]:
    if configuration == PLAIN:
        return []
    return jetspec_flags(head, configuration.budget, 1 if configuration.expansion == "chain" else None)


def parse_budgets(text: str) -> list[int]:
    """`"1,8,16"` → `[1, 8, 16]`.

    Raises:
        CompareError: something that is no list of positive numbers.
    """
    try:
        budgets = list(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        budgets = [0]
    if min(budgets) < 1:
        raise CompareError(f"--budgets is {text!r}; give whole numbers from 1, like 1,8,16.")
    return budgets


class Conversations:
    """The prompts, each with the plain answers that its later turns build on."""

    def __init__(self, prompts: list[Prompt], chat: Chat) -> None:
        self.prompts = prompts
        self._chat = chat
        self._plain: dict[tuple[int, int], str] = {}

    def turns(self) -> Iterator[tuple[int, int, str]]:
        """Number of the prompt, number of the turn, domain."""
        for number, prompt in enumerate(self.prompts):
            for turn in range(len(prompt.turns)):
                yield number, turn, prompt.domain

    def tokens(self, number: int, turn: int) -> list[int]:
        texts = self.prompts[number].turns
        earlier = [text for i in range(turn) for text in (texts[i], self._plain[number, i])]
        return self._chat.tokens([*earlier, texts[turn]])

    def warm_up(self) -> list[int]:
        return self._chat.tokens([WARM_UP])

    def note_plain(self, number: int, turn: int, text: str) -> None:
        """The first plain answer counts for good."""
        self._plain.setdefault((number, turn), text)


def measure(
    block: Configuration, plain: Server, server: Server, conversations: Conversations, max_new_tokens: int
) -> Iterator[Measurement]:
    """Every turn of every prompt to both servers."""
    servers = {PLAIN: plain, block: server}
    for asked, (number, turn, domain) in enumerate(conversations.turns()):
        tokens = conversations.tokens(number, turn)
        answers = {
            configuration: ask(servers[configuration], tokens, max_new_tokens, stream_interval=TWO_MESSAGES)
            for configuration in alternating(servers, asked)
        }
        conversations.note_plain(number, turn, answers[PLAIN].text)
        for configuration, answer in answers.items():
            identical = answer.token_ids == answers[PLAIN].token_ids
            yield Measurement(block, configuration, domain, number, turn, answer, identical)


def round_stats(server: Server) -> dict[str, Any] | None:
    """What a JETSPEC server counts of its rounds; None of a plain one."""
    return server.info()["internal_states"][0].get("jetspec")


def evaluate(
    budgets: Annotated[str, typer.Option(help="Budgets of the trees, root included.")] = "1,8,16,32,64",
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
) -> None:
    """Measure accept length and speed of a head: plain decoding, its chain, and trees of several budgets."""
    console = terminal()
    with ending_cleanly("jetspec eval"), ExitStack() as stack:
        writable(json_file)
        writable(jsonl)
        raw = stack.enter_context(jsonl.open("w")) if jsonl else None
        chosen = load_prompts(prompts)
        chosen = mixed(chosen, limit or len(chosen))
        bar = stack.enter_context(_progress(console))
        rows, stages = run(
            bar, chosen, parse_budgets(budgets), (target, head), dtype.value, max_new_tokens, raw
        )
        bar.stop()
        console.print(*tables(rows, stages))
        if json_file:
            json_file.write_text(
                json.dumps({"machine": describe(), "dtype": dtype, "rows": rows, "stages": stages}, indent=2)
                + "\n"
            )


def run(
    bar: Progress,
    prompts: list[Prompt],
    budgets: list[int],
    folders: tuple[Path | None, Path | None],
    dtype: str,
    max_new_tokens: int,
    raw: TextIO | None,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The whole measurement, servers included → (rows by domain, stage shares by configuration)."""
    task = bar.add_task("Preparing the model")

    def say(text: str) -> None:
        if bar.tasks[task].description != text and not bar.console.is_terminal:
            bar.console.print(text)
        bar.update(task, description=text)

    def begin(name: str, server: Server) -> None:
        say(f"Starting {name}")
        start_all({name: server}, lambda names, seconds: None)
        ask(server, conversations.warm_up(), WARM_UP_TOKENS)

    target, head = model_folders(*folders)
    conversations = Conversations(prompts, Chat(target))
    common = [
        *common_flags(target, dtype),
        "--disable-radix-cache",
    ]  # no prompt is served from an earlier one
    measured, stages = [], []
    plain = Server(common)
    with stopping(plain):
        begin("plain", plain)
        for block in configurations(budgets, head_block_length(head))[1:]:
            server = Server([*common, *server_flags(block, head)])
            with stopping(server):
                begin(block.name, server)
                before = round_stats(server)
                for m in measure(block, plain, server, conversations, max_new_tokens):
                    say(f"{block.name}: prompt {m.prompt + 1} of {len(prompts)}")
                    measured.append(m)
                    if raw:
                        print(json.dumps(m.row()), file=raw, flush=True)
                stages.append({**asdict(block), **stage_shares(before, round_stats(server))})
            server.log.unlink(missing_ok=True)
    plain.log.unlink(missing_ok=True)
    return summarise(measured), stages


def _progress(console: Console) -> Progress:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
