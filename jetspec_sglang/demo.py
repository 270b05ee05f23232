"""`jetspec demo`: serve a small model plainly and with JETSPEC, ask both the same, compare."""

import io
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from .builtin.prompts import Prompt, load_prompts, mixed
from .compare import (
    Answer,
    Chat,
    Dtype,
    alternating,
    ask,
    common_flags,
    ending_cleanly,
    jetspec_flags,
    model_folders,
    start_all,
    tau,
    terminal,
    writable,
)
from .demo_report import JETSPEC, PLAIN, REPEATS, Comparison, Result, report, result_line, side_by_side, usage
from .serving import Server, stopping

PROMPTS = 6
# Tokens a message. With 1, plain decoding would send several times the messages of JETSPEC and pay for them.
STREAM_INTERVAL = 4
WARM_UP, WARM_UP_TOKENS = "Name three colours.", 16


class Screen:
    """What the user sees meanwhile: both answers side by side, or plain lines if stdout is no terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.status = ""
        self.texts: dict[str, str] = {}
        self.captions: dict[str, str] = {}
        self._spinner = Spinner("dots")
        self._began = self._reported = time.monotonic()

    @contextmanager
    def running(self) -> Iterator[None]:
        if not self.console.is_terminal:
            yield
            return
        with Live(get_renderable=self._render, console=self.console, refresh_per_second=8, transient=True):
            yield

    def step(self, status: str) -> None:
        """Something new begins."""
        self.status, self._began = status, time.monotonic()
        if not self.console.is_terminal:
            self.console.print(status)
            self._reported = self._began

    def waiting(self, names: str, seconds: float) -> None:
        """The servers `names` are still starting."""
        self.status = f"Starting the {names} server{'s' * (' and ' in names)}"
        if not self.console.is_terminal and time.monotonic() - self._reported > 10:
            self._reported = time.monotonic()
            self.console.print(f"{self.status} … {seconds:.0f} s")

    def clear(self) -> None:
        self.texts, self.captions = {}, {}

    def answered(self, name: str, answer: Answer) -> None:
        self.texts[name] = answer.text
        rate = f"{answer.decoded / answer.decode_seconds:.1f} tok/s" if answer.decoded else "1 token"
        self.captions[name] = f"{rate}, τ {tau([answer]):.2f}" if name == JETSPEC else rate

    def final(self) -> Table | Text:
        """The last two answers, to stay on the screen; lines have been printed before."""
        return side_by_side(self.texts, self.captions, self.console) if self.console.is_terminal else Text()

    def _render(self) -> Group:
        self._spinner.text = Text(f"{self.status}  {time.monotonic() - self._began:.0f} s")
        return Group(side_by_side(self.texts, self.captions, self.console), self._spinner)


def compare_prompt(
    screen: Screen, servers: dict[str, Server], chat: Chat, row: Comparison, what: str, max_new_tokens: int
) -> None:
    """Ask both servers by turns. One at a time: at the same time they would slow each other."""
    screen.clear()
    tokens = chat.tokens(row.prompt.turns[:1])
    for repeat in range(REPEATS):
        screen.step(f"{what}, run {repeat + 1} of {REPEATS}")
        for name in alternating(servers, repeat):

            def show(text: str, name: str = name) -> None:
                screen.texts[name] = text

            answer = ask(servers[name], tokens, max_new_tokens, stream_interval=STREAM_INTERVAL, on_text=show)
            row.answers[name].append(answer)
            screen.answered(name, answer)
    screen.console.print(result_line(row), highlight=False)
    if not screen.console.is_terminal:
        for name in [JETSPEC] if row.identical else [PLAIN, JETSPEC]:
            screen.console.print(f"--- {'both' if row.identical else name}:", highlight=False)
            screen.console.print(screen.texts[name], highlight=False, markup=False)


def run(
    screen: Screen,
    prompts: list[Prompt],
    folders: tuple[Path | None, Path | None],
    dtype: str,
    budget: int,
    max_new_tokens: int,
    keep: bool,
) -> tuple[Result, str]:
    """The whole comparison, servers included → its result, and what the user can do next."""
    screen.step("Preparing the model")
    target, head = model_folders(*folders)
    chat = Chat(target)
    flags = common_flags(target, dtype)
    servers = {PLAIN: Server(flags), JETSPEC: Server([*flags, *jetspec_flags(head, budget)])}
    next_steps = usage(target, head, budget, servers[JETSPEC].url if keep else "http://127.0.0.1:30000")
    with stopping(*servers.values()):
        screen.step("Starting both servers")
        start_all(servers, screen.waiting)
        screen.step("Warming up")
        for server in servers.values():
            ask(server, chat.tokens([WARM_UP]), WARM_UP_TOKENS)
        rows = [Comparison(prompt) for prompt in prompts]
        for number, row in enumerate(rows, 1):
            what = f"Prompt {number} of {len(rows)} ({row.prompt.domain})"
            compare_prompt(screen, servers, chat, row, what, max_new_tokens)
        screen.step("Stopping the servers")
        if keep:
            pid, url = servers[JETSPEC].keep(), servers[JETSPEC].url
            next_steps = f"JETSPEC runs on at {url}, process {pid}; `kill {pid}` ends it.\n\n{next_steps}"
    for name, server in servers.items():
        if not (keep and name == JETSPEC):
            server.log.unlink(missing_ok=True)
    return Result(dtype, budget, rows), next_steps


def demo(
    dtype: Annotated[
        Dtype, typer.Option(help="Of weights and arithmetic; float32 is exact.")
    ] = Dtype.bfloat16,
    budget: Annotated[int, typer.Option(min=1, help="Nodes of the token tree, root included.")] = 16,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Length limit of an answer.")] = 128,
    prompts: Annotated[
        Path | None, typer.Option(help='Own prompts: JSONL rows {"turns": ["…"]}; first turns are asked.')
    ] = None,
    target: Annotated[Path | None, typer.Option(help="Model folder (default: the built-in model).")] = None,
    head: Annotated[Path | None, typer.Option(help="Draft head folder (default: the built-in head).")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the JETSPEC server running.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers to this file.")] = None,
    svg: Annotated[
        Path | None, typer.Option(help="Write a picture of the final screen to this file.")
    ] = None,
) -> None:
    """Serve a small model plainly and with JETSPEC, and compare text and speed on the same prompts."""
    console = terminal()
    screen = Screen(console)
    with ending_cleanly("jetspec demo"):
        for file in (json_file, svg):
            writable(file)
        chosen = load_prompts(prompts) if prompts else mixed(load_prompts(), PROMPTS)
        with screen.running():
            result, next_steps = run(
                screen, chosen, (target, head), dtype.value, budget, max_new_tokens, keep
            )
        console.print(screen.final(), report(result), "")
        console.print(next_steps, markup=False, highlight=False, soft_wrap=True)
        if json_file:
            json_file.write_text(json.dumps(result.summary(), indent=2, ensure_ascii=False) + "\n")
        if svg:
            draw(svg, screen, result)
    if dtype is Dtype.float32 and result.differing:
        raise typer.Exit(1)


def draw(file: Path, screen: Screen, result: Result) -> None:
    """The final screen as SVG."""
    canvas = Console(record=True, file=io.StringIO(), width=120, height=40, force_terminal=True)
    canvas.print(Text("$ jetspec demo", style="bold"))
    canvas.print(side_by_side(screen.texts, screen.captions, canvas), report(result))
    canvas.save_svg(str(file), title="jetspec demo")
