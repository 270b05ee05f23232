"""`jetspec eval --concurrency`: throughput of plain decoding, fixed budgets and the adaptive one, by load.

A cell is one method at one concurrency N: N clients, each of which sends its next prompt when the last one is
answered, until all prompts are (a closed loop). Every cell sends the same prompts for the same number of tokens
(`ignore_eos`), so all do the same work, and its throughput is tokens over the time from the first request to the
last answer, prefill included. A repeat runs all cells, methods by turns at each concurrency, in alternating
order; a speed-up compares cells of one repeat, and the median repeat counts. Each repeat has servers of its own,
started in alternating order, so that what one process has and an equal one has not (its memory, say) counts less.

Fixed budgets are settings of requests to one JETSPEC server; the adaptive budget is a second one, with the
largest of them as its limit.
"""

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from .builtin.prompts import Prompt
from .client import post
from .compare import (
    POOL_TOKENS,
    Chat,
    CompareError,
    alternating,
    common_flags,
    start_all,
    tau,
)
from .eval_run import WARM_UP_TOKENS, Head, Setting
from .figures import save
from .serving import Server, stopping
from .tree_settings import KEY

PLAIN, ADAPTIVE = "plain", "adaptive"


@dataclass(frozen=True)
class Served:
    """One answered request. `began`, `ended`: seconds since its cell began."""

    method: str
    concurrency: int
    repeat: int
    prompt: int
    tokens: int
    began: float
    ended: float
    rounds: int
    accepted_drafts: int

    @property
    def decoded(self) -> int:
        return self.tokens

    @property
    def decode_seconds(self) -> float:
        return self.ended - self.began

    def row(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> "Served":
        """Raises KeyError for another row."""
        return cls(**{field.name: row[field.name] for field in fields(cls)})


@dataclass(frozen=True)
class Method:
    """Where requests go, and what they ask for."""

    server: Server
    custom_params: dict[str, Any] | None


def run(
    head: Head,
    budgets: Sequence[int],
    concurrencies: Sequence[int],
    prompts: Sequence[Prompt],
    chat: Chat,
    setting: Setting,
    say: Callable[[str], None],
) -> Iterator[Served]:
    """The whole measurement, servers included. Only first turns are sent: later ones need earlier answers."""
    questions = [chat.tokens(prompt.turns[:1]) for prompt in prompts]
    lengths = spread(setting.max_new_tokens, len(questions))
    flags = server_flags(setting, budgets, concurrencies, max(map(len, questions)))
    for repeat in range(setting.repeats):
        methods = _methods(flags, head, budgets)
        servers = list(dict.fromkeys(method.server for method in methods.values()))
        with stopping(*servers):
            say(f"Starting three servers, repeat {repeat + 1} of {setting.repeats}")
            # One at a time: the adaptive one measures rounds as it starts.
            for server in alternating(servers, repeat):
                start_all({head.label: server}, lambda names, seconds: None)
            say("Warming up")
            for method in methods.values():
                for concurrency in concurrencies:
                    few = questions[:concurrency]
                    cell(method, few, [WARM_UP_TOKENS] * len(few), concurrency, setting.temperature)
            for turn, concurrency in enumerate(concurrencies, start=repeat):
                for name in alternating(methods, turn):
                    say(f"{name}, {concurrency} at once, repeat {repeat + 1} of {setting.repeats}")
                    answers = cell(methods[name], questions, lengths, concurrency, setting.temperature)
                    for prompt, answer in enumerate(answers):
                        yield Served(name, concurrency, repeat, prompt, **answer)
        for server in servers:
            server.log.unlink(missing_ok=True)


def _methods(flags: list[str], head: Head, budgets: Sequence[int]) -> dict[str, Method]:
    """On three new servers."""
    tree = [*flags, *head.flags(max(budgets))]
    fixed = Server(tree)
    return {
        PLAIN: Method(Server(flags), None),
        **{f"budget {n}": Method(fixed, {KEY: {"budget": n}}) for n in budgets},
        ADAPTIVE: Method(Server([*tree, "--jetspec-budget", "adaptive"]), None),
    }


def server_flags(
    setting: Setting, budgets: Sequence[int], concurrencies: Sequence[int], longest_prompt: int
) -> list[str]:
    """The same for all servers: room for the most requests at once, and no prompt served from an earlier one.
    SGLang reserves slots for two rounds of a request."""
    most = max(concurrencies)
    room = most * (longest_prompt + setting.max_new_tokens + 3 * max(budgets))
    return [
        *common_flags(setting.target, setting.dtype, max(POOL_TOKENS, room)),
        *("--max-running-requests", str(most)),
        "--disable-radix-cache",
    ]


def spread(longest: int, count: int) -> list[int]:
    """`count` lengths of answers from half of `longest` to all of it, in an order that is always the same.

    Answers of one length would end together with plain decoding and not with drafts: the next prompts would be read
    in one batch here and one by one there, which is no difference between the methods under real load.
    """
    lengths = [longest - longest * number // (2 * count) for number in range(count)]
    random.Random(0).shuffle(lengths)
    return lengths


def cell(
    method: Method,
    questions: Sequence[list[int]],
    lengths: Sequence[int],
    concurrency: int,
    temperature: float,
) -> list[dict[str, Any]]:
    """All questions to one method, at most `concurrency` at once, for answers of `lengths` tokens → the measured
    fields of `Served`.

    Raises:
        CompareError: a server refused a request, went away, or gave another number of tokens.
    """
    began = time.perf_counter()

    def one(tokens: list[int], new_tokens: int) -> dict[str, Any]:
        sent = time.perf_counter() - began
        meta = generate(method, tokens, new_tokens, temperature)["meta_info"]
        if meta["completion_tokens"] != new_tokens:
            raise CompareError(f"A server gave {meta['completion_tokens']} tokens instead of {new_tokens}.")
        return {
            "tokens": meta["completion_tokens"],
            "began": sent,
            "ended": time.perf_counter() - began,
            "rounds": meta.get("spec_verify_ct", 0),
            "accepted_drafts": meta.get("spec_num_correct_drafts", 0),
        }

    with ThreadPoolExecutor(concurrency) as clients:
        return list(clients.map(one, questions, lengths))


def generate(method: Method, tokens: list[int], new_tokens: int, temperature: float) -> dict[str, Any]:
    sampling: dict[str, Any] = {"temperature": temperature, "max_new_tokens": new_tokens, "ignore_eos": True}
    if method.custom_params:
        sampling["custom_params"] = method.custom_params
    return post(method.server.url, "/generate", {"input_ids": tokens, "sampling_params": sampling})


def summarise(served: Sequence[Served]) -> list[dict[str, Any]]:
    """A row for each method and concurrency; `tokens` and `seconds` are of one cell."""
    cells: dict[tuple[str, int], dict[int, list[Served]]] = {}
    for answer in served:
        cells.setdefault((answer.method, answer.concurrency), {}).setdefault(answer.repeat, []).append(answer)
    seconds = {
        key: {repeat: max(answer.ended for answer in answers) for repeat, answers in repeats.items()}
        for key, repeats in cells.items()
    }
    rows = []
    for (method, concurrency), repeats in cells.items():
        mine, plain = seconds[method, concurrency], seconds[PLAIN, concurrency]
        tokens = sum(answer.tokens for answer in repeats[min(repeats)])
        rows.append(
            {
                "method": method,
                "concurrency": concurrency,
                "tok_s": tokens / median(mine.values()),
                "speedup": median(plain[repeat] / mine[repeat] for repeat in mine),
                "tau": tau([answer for answers in repeats.values() for answer in answers]),
                "tokens": tokens,
                "seconds": median(mine.values()),
            }
        )
    methods = list(dict.fromkeys(answer.method for answer in served))
    return sorted(rows, key=lambda row: (row["concurrency"], methods.index(row["method"])))


def best_fixed(rows: Sequence[Mapping[str, Any]], concurrency: int) -> Mapping[str, Any]:
    """What one would have chosen for this load: plain decoding or one of the budgets."""
    here = (row for row in rows if row["concurrency"] == concurrency and row["method"] != ADAPTIVE)
    return max(here, key=lambda row: row["tok_s"])


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Throughput and speed-up by method and concurrency; below, adaptive against the best fixed choice."""
    concurrencies = sorted({row["concurrency"] for row in rows})
    cells = {(row["method"], row["concurrency"]): row for row in rows}
    shown = Table(
        title="tok/s (speed-up over plain decoding) at so many requests at once",
        caption="best fixed: the fastest of plain decoding and the budgets, at each load",
    )
    shown.add_column("method")
    for concurrency in concurrencies:
        shown.add_column(str(concurrency), justify="right")
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = [cells[method, concurrency] for concurrency in concurrencies]
        shown.add_row(method, *(f"{row['tok_s']:.1f} ({row['speedup']:.2f}x)" for row in mine))
    shown.add_section()
    best = [best_fixed(rows, concurrency) for concurrency in concurrencies]
    shown.add_row("best fixed", *(row["method"] for row in best))
    ratios = (cells[ADAPTIVE, row["concurrency"]]["tok_s"] / row["tok_s"] for row in best)
    shown.add_row("adaptive / best fixed", *(f"{ratio:.2f}" for ratio in ratios))
    return shown


def show(
    console: Console,
    run: Mapping[str, Any],
    served: Sequence[Served],
    json_file: Path | None,
    plot: Path | None,
) -> None:
    """Everything that the user asked to see of a measurement, or of a file of one."""
    rows = summarise(served)
    console.print(table(rows))
    if json_file:
        json_file.write_text(json.dumps({**run, "rows": rows}, indent=2) + "\n")
    if plot:
        from .eval_plot import load_figure

        save(load_figure(run, rows), plot)
