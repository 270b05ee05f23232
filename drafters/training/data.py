"""The stage `data`: prompts in, shards of token sequences out.

Writes `heldout-*.safetensors` (the target's answers to the held-out prompts) once, then `shard-*.safetensors`
until N response tokens are there or the prompts are used up. A second call goes on where the first stopped.
Several processes with `worker` 0…K-1 share the work: on a busy machine K of one thread are faster than one of
K threads.

Where the generator sees features while it answers, they are kept, and the shards are those of the stage
`features`. Otherwise they hold tokens alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch

from jetspec_sglang.builtin import BUILTIN

from .config import TrainConfig
from .disk import require_space
from .errors import TrainError
from .generate import Generator
from .shards import Folder, Tokens, write_shard
from .sources import Builtin, Row, Rows, Source, heldout_rows, read_rows
from .target import target_layer_ids

HELDOUT = "heldout-00000.safetensors"
SELF_WRITTEN_TOKENS = 80  # of which the target writes a prompt of its own
PROMPT_SHARE = 1.5  # tokens a response token brings, prompts included, as an estimate

Report = Callable[[int, float], None]


class ChatText:
    """The target's tokenizer, as chats and plain texts need it."""

    def __init__(self, target: str | Path) -> None:
        from transformers import AutoTokenizer, GenerationConfig

        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(target)
        except (OSError, ValueError) as error:
            raise TrainError(f"target {target} has no tokenizer within reach: {error}") from error
        try:
            stops = GenerationConfig.from_pretrained(target).eos_token_id
        except OSError:
            stops = None
        self.eos: int = self.tokenizer.eos_token_id
        self.stop_ids = {self.eos, *(stops if isinstance(stops, list) else [stops])} - {None}
        if not self.stop_ids:
            raise TrainError(f"target {target} names no end-of-text token, so answers would never end")

    def prompt(self, row: Row) -> list[int]:
        """The chat template around the row's messages, ready for the answer."""
        if not row.messages:
            raise TrainError("a plain text has no prompt to answer: set data.responses to `corpus`")
        if self.tokenizer.chat_template is None:
            raise TrainError("the target has no chat template: take a chat model, or a corpus of plain texts")
        tokens = self.tokenizer.apply_chat_template(
            row.messages, add_generation_prompt=True, return_dict=False
        )
        return cast(list[int], tokens)

    def answered(self, row: Row, max_new_tokens: int) -> Tokens:
        """The row with the data set's own answer, or its plain text behind its first token."""
        if row.response is None and row.text is None:
            raise TrainError("a row has no answer of its own: set data.responses to `regenerate`")
        prompt = self.prompt(row) if row.text is None else []
        rest = self.tokenizer.encode(row.text or row.response, add_special_tokens=False)
        rest = [*rest, self.eos][: max_new_tokens + (not prompt)]
        return Tokens(torch.tensor(prompt + rest), len(prompt) or 1)

    def opened(self, opening: str) -> tuple[list[int], int]:
        """A user's turn that begins with `opening`, and how many of its tokens come before the turn's text."""
        marker = "\x00"
        turn = self.tokenizer.apply_chat_template([{"role": "user", "content": marker}], tokenize=False)
        before = cast(str, turn).partition(marker)[0]
        return self.tokenizer.encode(before + opening), len(self.tokenizer.encode(before))

    def decode(self, tokens: torch.Tensor) -> str:
        return self.tokenizer.decode(tokens, skip_special_tokens=True)


class DataStage:
    """Answers prompts in batches and writes a shard a batch."""

    def __init__(self, config: TrainConfig, target: str | Path, generator: Generator) -> None:
        """Raises TrainError if prompts, target or disk don't suit."""
        from transformers import AutoConfig

        self.config, self.generator = config, generator
        self.text = ChatText(target)
        shape = AutoConfig.from_pretrained(target)
        taps = target_layer_ids(config, shape)
        # A corpus is read, not generated, so nothing has looked at it.
        regenerate = config.data.responses == "regenerate"
        self.with_features = generator.gives_features and regenerate and config.features.mode == "disk"
        self.folder = config.features_folder if self.with_features else config.tokens_folder
        heldout = heldout_rows(config.data.heldout)
        self.heldout = [self.text.prompt(row) for row in heldout]
        self.source = self._source(heldout)
        self.description = {
            "source": f"greedy answers of the target to {self.source.name}"
            if regenerate
            else f"the answers of {self.source.name} itself, not the target's",
            "target": shape.name_or_path or str(target),
            "target_layer_ids": taps,
            "hidden_size": shape.hidden_size,
        }
        self.bytes_per_token = 4 + self.with_features * (2 * len(taps) * shape.hidden_size + 16 * 6)

    def _source(self, heldout: list[Row]) -> Source:
        data, seed = self.config.data, self.config.seed
        if data.prompts != BUILTIN:
            rows = Rows(Path(data.prompts).name, read_rows(data.prompts, data.split), heldout, seed)
            if not rows.rows:
                raise TrainError(f"{data.prompts} has no row that is not held out: give other prompts")
            return rows
        if data.responses == "corpus":
            raise TrainError("the built-in prompts have no answers: set data.responses to `regenerate`")
        return Builtin(heldout, seed, self._self_written)

    def _self_written(self, openings: list[str], seed: int) -> list[str]:
        """What the target makes of opened user turns, sampled."""
        torch.manual_seed(seed)
        opened = [self.text.opened(opening) for opening in openings]
        skip = opened[0][1]
        answers = self.generator.answer(
            [tokens for tokens, _ in opened], SELF_WRITTEN_TOKENS, self.text.stop_ids, sample=True
        )
        texts = [self.text.decode(answer.tokens[skip:]).strip() for answer in answers]
        return [text for text in texts if 8 <= len(text) <= 600]

    def _texts(self, rows: list[Row]) -> list[Tokens]:
        data = self.config.data
        if data.responses == "corpus":
            texts = [self.text.answered(row, data.max_new_tokens) for row in rows]
            return [
                text for text in texts if text.prompt_len <= data.max_prompt_tokens and len(text.anchors())
            ]
        prompts = [self.text.prompt(row) for row in rows]
        return self._answers([prompt for prompt in prompts if len(prompt) <= data.max_prompt_tokens])

    def _answers(self, prompts: list[list[int]]) -> list[Tokens]:
        if not prompts:
            return []
        answers = list(self.generator.answer(prompts, self.config.data.max_new_tokens, self.text.stop_ids))
        return answers if self.with_features else [Tokens(a.tokens, a.prompt_len) for a in answers]

    def run(self, worker: int = 0, workers: int = 1, report: Report = lambda *_: None) -> None:
        """Write this worker's shards (numbers worker, worker + workers, …) until all shards hold enough tokens.

        `report(response tokens in all shards, response tokens a second)` is called after each.
        """
        data, have = self.config.data, Folder(self.folder)
        report(have.response_tokens(), 0.0)
        left = max(0, data.response_tokens - have.response_tokens()) * PROMPT_SHARE
        require_space(
            self.folder,
            left * self.bytes_per_token,
            "the stage `data`",
            "lower data.response_tokens, or move `work` to another disk",
        )
        if worker == 0 and not (self.folder / HELDOUT).exists():
            write_shard(self.folder / HELDOUT, self._answers(self.heldout), self.description)
        for number in range(worker, 10**6, workers):
            path = self.folder / f"shard-{number:05d}.safetensors"
            if path.exists():
                continue
            if have.response_tokens() >= data.response_tokens:
                return
            began = time.perf_counter()
            rows = self.source.batch(number, data.batch)
            if rows is None:
                return
            if texts := self._texts(rows):
                write_shard(path, texts, self.description)
                fresh = have.shard(path.name).response_tokens
                report(have.response_tokens(), fresh / (time.perf_counter() - began))
