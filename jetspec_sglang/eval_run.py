"""The measuring of `jetspec eval`: servers, conversations, and every question to every configuration by turns.

One JETSPEC server a head, started with the largest budget asked for, stands beside one plain server; what a
configuration is, its requests say. So a question goes to all configurations of a head within a short time, in
alternating order, and a machine that gets slower or faster during the run leaves the ratios alone. The idle one
of the two servers sleeps (`--sleep-on-idle`): by default its scheduler would poll without a pause, which costs
the other a core.

A later turn of a conversation is asked after the *plain* answers to the earlier ones, for all configurations:
so all get the same input even where bfloat16, or chance, made their answers differ.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .builtin.prompts import Prompt
from .client import jetspec_state
from .compare import Answer, Chat, alternating, ask, common_flags, jetspec_flags, start_all
from .config import DEFAULT_WIDTH, SUFFIX
from .eval_grid import PLAIN, Configuration, reads_a_file
from .eval_rows import Measurement
from .round_stats import STAGES
from .serving import Server, stopping

WARM_UP, WARM_UP_TOKENS = "Name three colours.", 16
TWO_MESSAGES = 1 << 20  # stream interval: the first token and the end, so that streaming costs nothing


@dataclass(frozen=True)
class Head:
    """A draft head, the kind of drafter that it is, and its name in all output.

    folder: None for the drafter that needs no head. graft: what is grafted onto its trees. block_length: one more
    than the most drafts that a round can accept, whatever the budget.
    """

    label: str
    drafter: str
    folder: Path | None
    block_length: int
    graft: str = "none"

    @property
    def retrieves(self) -> bool:
        """Then its trees are optimal ones, ranked by their chance to be accepted."""
        return SUFFIX in (self.drafter, self.graft)

    def flags(self, budget: int, width: int | None = None) -> list[str]:
        """Of a server that drafts so.

        It remembers no finished answers: a question is asked in several configurations and several times, and the
        second answer would be drafted from the first.
        """
        flags = [*jetspec_flags(self.folder, budget, width), "--jetspec-drafter", self.drafter]
        if self.graft != "none":
            flags += ["--jetspec-graft", self.graft]
        return [*flags, "--jetspec-suffix-cache", "0"] if self.retrieves else flags


@dataclass(frozen=True)
class Setting:
    """What all configurations of a run have in common."""

    target: Path
    dtype: str
    max_new_tokens: int
    temperature: float
    repeats: int
    eager_width: int


class Conversations:
    """The prompts, each with the plain answers that its later turns build on."""

    def __init__(self, prompts: Sequence[Prompt], chat: Chat) -> None:
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


class Counters:
    """What a JETSPEC server counts of its rounds, read after every answer."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._seen = self._read()

    def _read(self) -> dict[str, Any]:
        return jetspec_state(self._server.info(), self._server.url)

    def grown(self) -> tuple[dict[str, float], dict[str, int]]:
        """Since the last call: seconds by stage, and rounds by accepted drafts."""
        before, self._seen = self._seen, self._read()
        return grown(before, self._seen)


def grown(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, int]]:
    """Seconds by stage and rounds by accepted drafts, between two readings."""
    seconds = {stage: after["stage_seconds"][stage] - before["stage_seconds"][stage] for stage in STAGES}
    earlier = before["accepted_drafts_histogram"]
    rounds = {
        drafts: count - earlier.get(drafts, 0)
        for drafts, count in after["accepted_drafts_histogram"].items()
        if count > earlier.get(drafts, 0)
    }
    return seconds, rounds


class Block:
    """One head's server beside the plain one, and the configurations that it serves."""

    def __init__(
        self,
        head: Head,
        configurations: Sequence[Configuration],
        plain: Server,
        server: Server,
        conversations: Conversations,
        setting: Setting,
    ) -> None:
        self.head, self.conversations, self.setting = head, conversations, setting
        self.servers = {PLAIN: plain, **dict.fromkeys(configurations, server)}
        self.counters = Counters(server)

    def warm_up(self) -> None:
        """Also finds out, before anything is measured, whether the server takes all configurations."""
        for configuration in self.servers:
            self._ask(configuration, self.conversations.warm_up(), WARM_UP_TOKENS)

    def measure(self) -> Iterator[Measurement]:
        """Every turn of every prompt to every configuration, `repeats` times."""
        self.counters.grown()
        questions = [(*turn, r) for turn in self.conversations.turns() for r in range(self.setting.repeats)]
        for asked, (number, turn, domain, repeat) in enumerate(questions):
            tokens = self.conversations.tokens(number, turn)
            answers: dict[Configuration, Answer] = {}
            counted: dict[Configuration, tuple[dict[str, float], dict[str, int]]] = {PLAIN: ({}, {})}
            for configuration in alternating(self.servers, asked):
                answers[configuration] = self._ask(configuration, tokens, self.setting.max_new_tokens)
                if configuration != PLAIN:
                    counted[configuration] = self.counters.grown()
            self.conversations.note_plain(number, turn, answers[PLAIN].text)
            for configuration in self.servers:  # rows in the grid's order
                answer = answers[configuration]
                sampled = self.setting.temperature > 0
                yield Measurement(
                    configuration=configuration,
                    block=self.head.label,
                    domain=domain,
                    prompt=number,
                    turn=turn,
                    repeat=repeat,
                    temperature=self.setting.temperature,
                    completion_tokens=len(answer.token_ids),
                    decoded=answer.decoded,
                    prefill_seconds=answer.prefill_seconds,
                    decode_seconds=answer.decode_seconds,
                    rounds=answer.rounds,
                    accepted_drafts=answer.accepted_drafts,
                    drafts=configuration.drafts(self.head.block_length),
                    identical=None if sampled else answer.token_ids == answers[PLAIN].token_ids,
                    stage_seconds=counted[configuration][0],
                    histogram=counted[configuration][1],
                )

    def _ask(self, configuration: Configuration, tokens: list[int], max_new_tokens: int) -> Answer:
        asked = configuration.custom_params(self.setting.eager_width)
        return ask(
            self.servers[configuration],
            tokens,
            max_new_tokens,
            stream_interval=TWO_MESSAGES,
            temperature=self.setting.temperature,
            custom_params=asked,
        )


def head_flags(head: Head, configurations: Sequence[Configuration], eager_width: int) -> list[str]:
    """Flags of a server that can serve all of `configurations`: the largest budget, no less width, their file."""
    budget = max(configuration.budget for configuration in configurations)
    widest = min(eager_width, budget - 1) if any(c.expansion == "eager" for c in configurations) else 0
    width = widest if widest > DEFAULT_WIDTH else None
    flags = head.flags(budget, width)
    for scoring in dict.fromkeys(c.scoring for c in configurations if reads_a_file(c.scoring)):
        flags += ["--jetspec-scoring", scoring]
    return flags


def run(
    blocks: Mapping[Head, Sequence[Configuration]],
    prompts: Sequence[Prompt],
    chat: Chat,
    setting: Setting,
    say: Callable[[str], None],
) -> Iterator[Measurement]:
    """The whole measurement, servers included. `say` hears what is going on."""
    conversations = Conversations(prompts, chat)
    # No prompt is served from an earlier one.
    common = [*common_flags(setting.target, setting.dtype), "--disable-radix-cache"]
    plain = Server(common)
    with stopping(plain):
        say("Starting plain")
        start_all({"plain": plain}, lambda names, seconds: None)
        for head, configurations in blocks.items():
            server = Server([*common, *head_flags(head, configurations, setting.eager_width)])
            with stopping(server):
                say(f"Starting {head.label}")
                start_all({head.label: server}, lambda names, seconds: None)
                block = Block(head, configurations, plain, server, conversations, setting)
                say(f"Warming up {head.label}")
                block.warm_up()
                for m in block.measure():
                    say(f"{head.label}: prompt {m.prompt + 1} of {len(prompts)}")
                    yield m
            server.log.unlink(missing_ok=True)
    plain.log.unlink(missing_ok=True)
