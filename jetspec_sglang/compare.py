"""Shared by `jetspec demo`, `eval` and `tree`: the servers, one measured answer, its metrics, a clean end."""

import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import requests
import typer
from rich.console import Console

from .builtin.head import BuiltinHeadError, builtin_head, named_builtin
from .builtin.prompts import PromptError
from .builtin.target import BuiltinTargetError, builtin_target
from .serving import Server, ServerError

if TYPE_CHECKING:
    from .drafters.head_config import AnyHead

Name = TypeVar("Name")

POOL_TOKENS = 8192
START_TIMEOUT = 600  # a server; a loaded machine takes minutes where an idle one takes 30 s
AT_ONCE = 2  # servers starting side by side: importing keeps a core busy each


class Dtype(StrEnum):
    float32 = "float32"
    bfloat16 = "bfloat16"


class CompareError(RuntimeError):
    """Why the comparison can't go on, in one sentence for the user."""


@dataclass(frozen=True)
class Answer:
    """One answer and what it took.

    Time is measured from the first token's arrival, so prefill is not in it; the tokens that came with the
    first message are therefore left out of the speed, too.
    """

    text: str
    token_ids: tuple[int, ...]
    first_tokens: int
    prefill_seconds: float
    decode_seconds: float
    rounds: int = 0
    accepted_drafts: int = 0

    @property
    def decoded(self) -> int:
        """Tokens that fall into `decode_seconds`."""
        return len(self.token_ids) - self.first_tokens


class Decoded(Protocol):
    """What the metrics need of an answer: `Answer`, or a row that was kept of one."""

    @property
    def decoded(self) -> int: ...
    @property
    def decode_seconds(self) -> float: ...
    @property
    def rounds(self) -> int: ...
    @property
    def accepted_drafts(self) -> int: ...


def tau(answers: Sequence[Decoded]) -> float:
    """Accept length τ: tokens committed a round, the bonus included. 1 is plain decoding."""
    rounds = sum(answer.rounds for answer in answers)
    return 1 + sum(answer.accepted_drafts for answer in answers) / rounds if rounds else 1.0


def decode_cost(repeats: Sequence[Sequence[Decoded]]) -> float:
    """Seconds per decoded token over several prompts; each prompt counts with its median repeat."""
    tokens = sum(median(answer.decoded for answer in answers) for answers in repeats)
    seconds = sum(median(answer.decode_seconds for answer in answers) for answers in repeats)
    return seconds / tokens if tokens else float("nan")


def speedup(plain: Sequence[Sequence[Decoded]], other: Sequence[Sequence[Decoded]]) -> float:
    """Plain decode time / other decode time, both per token: equal texts need no such care, others do."""
    return decode_cost(plain) / decode_cost(other)


def common_flags(target: Path, dtype: str, pool_tokens: int = POOL_TOKENS) -> list[str]:
    """Flags of every compared server. An idle one must sleep: a scheduler otherwise keeps a core busy."""
    return [
        *("--model-path", str(target)),
        *("--dtype", dtype),
        *("--max-total-tokens", str(pool_tokens)),
        "--sleep-on-idle",
    ]


def jetspec_flags(head: Path | None, budget: int, width: int | None = None) -> list[str]:
    """What makes a server a JETSPEC server. `width` 1 drafts a chain. head: None for a drafter without one."""
    flags = [
        *("--speculative-algorithm", "JETSPEC"),
        *(() if head is None else ("--speculative-draft-model-path", str(head))),
        *("--speculative-num-draft-tokens", str(budget)),
    ]
    return flags if width is None else [*flags, "--speculative-eagle-topk", str(width)]


def model_folders(target: Path | None, head: Path | None) -> tuple[Path, Path]:
    """The user's folders, checked, or the built-in ones. The built-in target may have to be converted first.

    Raises:
        CompareError: a folder is missing or holds something else.
    """
    try:
        folder = builtin_head() if head is None else named_builtin(head) or head
    except BuiltinHeadError as error:
        raise CompareError(str(error)) from error
    _check_model_folder(folder, "--head")
    if target is not None:
        _check_model_folder(target, "--target")
    read_head(folder)  # before the target is converted, as it costs nothing to find out
    target = target_folder(target)
    _check_fit(folder, target)
    return target, folder


def target_folder(target: Path | None) -> Path:
    """The user's, checked, or the built-in one, which may have to be converted first.

    Raises:
        CompareError: the folder is missing or holds something else.
    """
    if target is not None:
        _check_model_folder(target, "--target")
        return target
    try:
        return builtin_target()
    except BuiltinTargetError as error:
        raise CompareError(str(error)) from error


def _check_fit(head: Path, target: Path) -> None:
    """Find out before two servers start. The server checks again."""
    from transformers import AutoConfig

    from .drafters.checkpoint import HeadError, check_fits_target, read_head_config

    try:
        check_fits_target(read_head_config(head), AutoConfig.from_pretrained(target))
    except (HeadError, ValueError) as error:
        raise CompareError(f"{head} does not go with {target}: {error}.") from error


def _check_model_folder(folder: Path, option: str) -> None:
    if not folder.is_dir():
        raise CompareError(f"{option}: there is no folder {folder}.")
    if not (folder / "config.json").is_file() or not _weights(folder):
        raise CompareError(f"{option}: {folder} is no model folder (config.json and *.safetensors).")


def _weights(folder: Path) -> bool:
    """The first EAGLE-3 heads were published as *.bin."""
    return any(file for pattern in ("*.safetensors", "*.bin") for file in folder.glob(pattern))


def read_head(head: Path) -> "AnyHead":
    """What kind of head it is, and its block length.

    Raises:
        CompareError: the folder holds something other than a draft head.
    """
    from .drafters.checkpoint import HeadError, read_head_config

    try:
        return read_head_config(head)
    except HeadError as error:
        raise CompareError(f"{head} holds no draft head: {error}.") from error


def start_all(servers: dict[str, Server], waiting: Callable[[str, float], None]) -> None:
    """Start `servers`, a few side by side. `waiting(names, seconds so far)` is called about twice a second.

    Raises:
        CompareError: one of them did not come up; its log is kept and named.
    """
    began = time.monotonic()
    starting: dict[str, Server] = {}
    todo = list(servers.items())
    while todo or starting:
        while todo and len(starting) < AT_ONCE:
            name, server = todo.pop(0)
            server.launch()
            starting[name] = server
        elapsed = time.monotonic() - began
        for name, server in list(starting.items()):
            try:
                if server.ready():
                    del starting[name]
            except ServerError as error:
                raise CompareError(f"The {name} server did not start: {failure_reason(server)}") from error
        if elapsed > START_TIMEOUT * len(servers):
            raise CompareError(f"The server {' and '.join(starting)} did not answer within {elapsed:.0f} s.")
        if starting:
            waiting(" and ".join(starting), elapsed)
            time.sleep(0.5)


def failure_reason(server: Server) -> str:
    """The sentence that matters in a failed server's log, and where the log is."""
    log = server.log.read_text(errors="replace")
    ours = re.findall(r"^jetspec: (?:error: )?(.+)$", log, re.MULTILINE)
    raised = re.findall(r"^(?:\w+\.)*\w*(?:Error|Exception)\b: (.+)$", log, re.MULTILINE)
    reason = (ours or raised or ["it gave no reason."])[-1].strip()
    return f"{reason} (log: {server.log})"


class Chat:
    """Turns a conversation into the target's input tokens."""

    def __init__(self, target: Path) -> None:
        from transformers import AutoTokenizer

        try:
            self._tokenizer = AutoTokenizer.from_pretrained(target)
        except (OSError, ValueError) as error:
            raise CompareError(f"{target} has no tokenizer that transformers can load.") from error

    def tokens(self, texts: Sequence[str]) -> list[int]:
        """`texts`: user and assistant in turn, the user last."""
        if self._tokenizer.chat_template is None:
            return self._tokenizer("\n\n".join(texts))["input_ids"]
        roles = ("user", "assistant")
        messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
        return list(
            self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        )


def ask(
    server: Server,
    tokens: list[int],
    max_new_tokens: int,
    *,
    stream_interval: int = 1,
    on_text: Callable[[str], None] = lambda text: None,
    temperature: float = 0,
    custom_params: dict[str, Any] | None = None,
) -> Answer:
    """One answer, greedy unless `temperature` says else; `on_text(text so far)` is called whenever more has
    arrived. `custom_params` as SGLang passes them on: what a request asks of JETSPEC.

    Raises:
        CompareError: the server refused the request or went away.
    """
    request: dict[str, Any] = {
        "input_ids": tokens,
        "stream": True,
        "sampling_params": {
            "temperature": temperature,
            "max_new_tokens": max_new_tokens,
            "stream_interval": stream_interval,
            **({"custom_params": custom_params} if custom_params else {}),
        },
    }
    began, first, first_tokens, last = time.perf_counter(), None, 0, {}
    try:
        with requests.post(server.url + "/generate", json=request, stream=True, timeout=600) as reply:
            if reply.status_code != 200:
                raise CompareError(f"The server refused the request: {refusal(reply.text)}")
            for line in _lines(reply):
                if not line.startswith(b"data: {"):
                    continue
                now = time.perf_counter()
                last = json.loads(line[len(b"data: ") :])
                if "error" in last:
                    raise CompareError(f"The server gave up: {last['error'].get('message', last['error'])}")
                if first is None:
                    first, first_tokens = now, last["meta_info"]["completion_tokens"]
                on_text(last["text"])
    except requests.RequestException as error:
        raise CompareError(f"A server stopped answering (log: {server.log}).") from error
    if first is None:
        raise CompareError(f"A server answered nothing (log: {server.log}).")
    meta = last["meta_info"]
    return Answer(
        text=last["text"],
        token_ids=tuple(last["output_ids"]),
        first_tokens=first_tokens,
        prefill_seconds=first - began,
        decode_seconds=now - first,
        rounds=meta.get("spec_verify_ct", 0),
        accepted_drafts=meta.get("spec_num_correct_drafts", 0),
    )


def refusal(text: str) -> str:
    """The sentence in a server's error answer, or how the answer begins."""
    try:
        error = json.loads(text)
        while isinstance(error, dict):
            error = error.get("message", error.get("error"))
    except ValueError:
        error = None
    return str(error or text)[:300]


def _lines(reply: requests.Response) -> Iterator[bytes]:
    """Lines as they arrive; `iter_lines` of requests would wait until its buffer is full."""
    rest = b""
    for data in reply.iter_content(chunk_size=None):
        *lines, rest = (rest + data).split(b"\n")
        yield from lines


def terminal() -> Console:
    """Of the terminal's width; in a file or pipe wide enough for the tables, where rich would assume 80 columns."""
    return Console(width=None if sys.stdout.isatty() else 120)


def alternating(names: Iterable[Name], turn: int) -> list[Name]:
    """The order in which turn `turn` asks: forth and back, so that a drift of the machine cancels out."""
    return list(names) if turn % 2 == 0 else list(names)[::-1]


def writable(file: Path | None) -> None:
    """Find out now, not after minutes of work, whether a result can be written to `file`.

    Raises:
        CompareError: it can't.
    """
    if file is None:
        return
    folder = file.resolve().parent
    if not folder.is_dir():
        raise CompareError(f"There is no folder {folder} to write {file.name} to.")
    if file.is_dir() or not os.access(file if file.exists() else folder, os.W_OK):
        raise CompareError(f"{file} can't be written; name another file.")


@contextlib.contextmanager
def waiting(console: Console, what: str) -> Iterator[None]:
    """Say what is going on, with a spinner in a terminal."""
    if not console.is_terminal:
        console.print(what, highlight=False)
        yield
        return
    with console.status(what):
        yield


@contextlib.contextmanager
def ending_cleanly(name: str) -> Iterator[None]:
    """Known errors become one sentence and status 1; SIGTERM and SIGHUP unwind the stack like Ctrl-C does."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = {
        sig: signal.signal(sig, leave)
        for sig in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(sig) != signal.SIG_IGN  # nohup
    }
    try:
        yield
    except (CompareError, PromptError, ServerError, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        print(f"{name}: interrupted; all servers are stopped.", file=sys.stderr)
        raise typer.Exit(130) from None
    finally:
        for sig, handler in before.items():
            signal.signal(sig, handler)
