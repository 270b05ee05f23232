"""What `jetspec demo` has to say: a prompt's outcome, the final table, and how to go on from there."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from .builtin.prompts import Prompt
from .compare import Answer, decode_cost, speedup, tau

PLAIN, JETSPEC = "plain", "JETSPEC"
STYLES = {PLAIN: "cyan", JETSPEC: "green"}
REPEATS = 2
PANEL_LINES = 14
LABEL = 16  # characters of a prompt: with it the table fits into 80 columns


@dataclass
class Comparison:
    """One prompt, answered `REPEATS` times by each server."""

    prompt: Prompt
    answers: dict[str, list[Answer]] = field(default_factory=lambda: {PLAIN: [], JETSPEC: []})

    @property
    def identical(self) -> bool:
        """Token for token, repeat by repeat: a later repeat reuses the cached prompt on both sides alike."""
        return all(
            plain.token_ids == jetspec.token_ids
            for plain, jetspec in zip(*self.answers.values(), strict=True)
        )

    @property
    def tau(self) -> float:
        return tau(self.answers[JETSPEC])

    @property
    def speedup(self) -> float:
        return speedup([self.answers[PLAIN]], [self.answers[JETSPEC]])

    def tok_s(self, name: str) -> float:
        return 1 / decode_cost([self.answers[name]])


@dataclass(frozen=True)
class Result:
    dtype: str
    budget: int
    rows: list[Comparison]

    def repeats(self, name: str) -> list[list[Answer]]:
        return [row.answers[name] for row in self.rows]

    @property
    def speedup(self) -> float:
        return speedup(self.repeats(PLAIN), self.repeats(JETSPEC))

    @property
    def tau(self) -> float:
        return tau([answer for answers in self.repeats(JETSPEC) for answer in answers])

    @property
    def differing(self) -> int:
        return sum(not row.identical for row in self.rows)

    def summary(self) -> dict:
        """What `--json` writes."""
        return {
            "dtype": self.dtype,
            "budget": self.budget,
            "prompts": [
                {
                    "prompt": row.prompt.turns[0],
                    "identical": row.identical,
                    "plain_tok_s": row.tok_s(PLAIN),
                    "jetspec_tok_s": row.tok_s(JETSPEC),
                    "tau": row.tau,
                }
                for row in self.rows
            ],
            "speedup": self.speedup,
            "tau": self.tau,
            "all_identical": self.differing == 0,
        }


def side_by_side(texts: dict[str, str], captions: dict[str, str], console: Console) -> Table | Text:
    """Both texts in two columns, each showing its end."""
    if not texts:
        return Text()
    grid = Table.grid(expand=True)
    lines = min(PANEL_LINES, console.height - 8)
    panels = []
    for name, style in STYLES.items():
        grid.add_column(ratio=1)
        shown = Text(texts.get(name, "")).wrap(console, console.width // 2 - 4)[-lines:]
        title = {PLAIN: "plain decoding", JETSPEC: "JETSPEC"}[name]
        panels.append(
            Panel(
                Text("\n").join(shown),
                title=title,
                subtitle=captions.get(name),
                border_style=style,
                height=lines + 2,
            )
        )
    grid.add_row(*panels)
    return grid


def result_line(row: Comparison) -> Text:
    mark = ("✓ identical", "green") if row.identical else ("≠ differs", "yellow")
    rates = (
        f" {row.tok_s(PLAIN):6.1f} → {row.tok_s(JETSPEC):6.1f} tok/s  τ {row.tau:.2f}  {row.speedup:.2f}x  "
    )
    return Text.assemble(
        (f"{row.prompt.domain:8}", "bold"), rates, mark, f"  {shortened(row.prompt.label, 40)}"
    )


def shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def report(result: Result) -> Group:
    """The final table with its totals, and what to know about them."""
    title = f"Plain decoding and JETSPEC, {result.dtype}, budget {result.budget}, greedy"
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1))
    for heading in ("prompt", "tokens", "plain", "JETSPEC", "τ", "speed-up", "identical"):
        table.add_column(heading, justify="left" if heading == "prompt" else "right", no_wrap=True)
    for row in result.rows:
        table.add_row(
            Text(shortened(row.prompt.label, LABEL)),
            str(len(row.answers[JETSPEC][0].token_ids)),
            f"{row.tok_s(PLAIN):.1f}",
            f"{row.tok_s(JETSPEC):.1f}",
            f"{row.tau:.2f}",
            f"{row.speedup:.2f}x",
            "yes" if row.identical else "no",
        )
    table.add_section()
    table.add_row(
        "all",
        str(sum(len(row.answers[JETSPEC][0].token_ids) for row in result.rows)),
        f"{1 / decode_cost(result.repeats(PLAIN)):.1f}",
        f"{1 / decode_cost(result.repeats(JETSPEC)):.1f}",
        f"{result.tau:.2f}",
        f"{result.speedup:.2f}x",
        f"{len(result.rows) - result.differing} of {len(result.rows)}",
        style="bold",
    )
    return Group(
        table,
        Text(f"plain, JETSPEC: tok/s, decoding only, median of {REPEATS} runs in alternating order."),
        *notes(result),
    )


def notes(result: Result) -> list[Text]:
    """Why texts may differ, where they do."""
    if not result.differing:
        return [Text("Every answer is token for token what the model alone writes.", style="green")]
    if result.dtype == "float32":
        return [Text("Answers differ in float32, which they must not: please report this.", style="bold red")]
    return [
        Text(
            f"{result.differing} of {len(result.rows)} answers differ. Verifying many tokens at once and "
            f"decoding one by one add up in another order, and {result.dtype} rounds the two differently: "
            "where two tokens are nearly as likely, the other one may win. "
            "`jetspec demo --dtype float32` gives identical text.",
            style="yellow",
        )
    ]


def usage(target: Path, head: Path, budget: int, url: str) -> str:
    """How to go on: serve, and ask with curl or the OpenAI client. Ready to paste."""
    return f"""\
Serve it:
{sys.executable} -m sglang.launch_server --model-path {target} \\
  --speculative-algorithm JETSPEC --speculative-draft-model-path {head} \\
  --speculative-num-draft-tokens {budget}

Ask it:
curl {url}/v1/chat/completions -H "Content-Type: application/json" \\
  -d '{{"model": "default", "messages": [{{"role": "user", "content": "Hello!"}}]}}'

Or in Python ({sys.executable}):
from openai import OpenAI
client = OpenAI(base_url="{url}/v1", api_key="none")
chat = client.chat.completions.create(model="default", messages=[{{"role": "user", "content": "Hello!"}}])
print(chat.choices[0].message.content)"""
