"""The data stage: prompts in, shards out.

Writes `heldout-*.safetensors` (answers to the held-out prompts) once, then `shard-*.safetensors`
until N response tokens are there. A second call goes on where the first stopped. Several processes with
`worker` 0…K-1 share the work: on a busy machine K of one thread are faster than one of K threads.
"""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import torch
from safetensors import safe_open
from transformers import AutoTokenizer

from .generate import Answer, Generator, write_shard
from .prompts import STARTERS, heldout_prompts, template_prompt, training_prompts

BATCH = 192
# Tokens. A batch is padded to its longest prompt, so the benchmarks' long prompts get batches of their own.
LONG, SHORT = 256, 96
SELF_WRITTEN = 0.4  # share of prompts that the target itself writes; the others come from templates


class DataStage:
    """Answers prompts in batches and writes a shard a batch."""

    def __init__(self, target: Path, out: Path, target_layer_ids: list[int], max_new_tokens: int) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(target)
        self.generator = Generator(target, target_layer_ids)
        self.out = out
        self.max_new_tokens = max_new_tokens
        self.stop_ids = {self.tokenizer.eos_token_id}
        self.description = {
            "source": "greedy answers of the target to templates, to prompts that it wrote itself, and to "
            "prompts of HumanEval, MT-Bench and GSM8K that are not held out",
            "target": self.generator.model.config.name_or_path or str(target),
            "target_layer_ids": target_layer_ids,
            "hidden_size": self.generator.model.config.hidden_size,
        }
        out.mkdir(parents=True, exist_ok=True)

    def encode(self, turns: list[str]) -> list[int]:
        """The chat template around the first turn, ready for the answer."""
        messages = [{"role": "user", "content": turns[0]}]
        tokens = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        return cast(list[int], tokens)  # what is returned depends on the arguments, which its type leaves out

    def self_written(self, count: int, rng: random.Random) -> list[list[int]]:
        """Prompts sampled from the target after an opened user turn, encoded as `encode` does."""
        marker = "\x00"
        turn = self.tokenizer.apply_chat_template([{"role": "user", "content": marker}], tokenize=False)
        opening = cast(str, turn).partition(marker)[0]
        starts = [self.tokenizer.encode(opening + rng.choice(STARTERS)) for _ in range(count)]
        offset = len(self.tokenizer.encode(opening))
        turns = []
        for answer in self.generator.answer(starts, 80, self.stop_ids, choose=_sample):
            text = cast(str, self.tokenizer.decode(answer.tokens[offset:], skip_special_tokens=True)).strip()
            if 8 <= len(text) <= 600:
                turns.append(self.encode([text]))
        return turns

    def write(self, name: str, prompts: list[list[int]]) -> int:
        """Answer `prompts` into one shard; → response tokens."""
        answers: list[Answer] = list(self.generator.answer(prompts, self.max_new_tokens, self.stop_ids))
        write_shard(self.out / name, answers, self.description)
        return sum(len(a.tokens) - a.prompt_len for a in answers)

    def run(
        self,
        tokens: int,
        worker: int = 0,
        workers: int = 1,
        seed: int = 0,
        report: Callable[[int, float], None] = lambda *_: None,
    ) -> None:
        """Write this worker's shards (numbers worker, worker + workers, …) until all shards hold `tokens`."""
        if worker == 0 and not (self.out / "heldout-00000.safetensors").exists():
            self.write("heldout-00000.safetensors", [self.encode(r["turns"]) for r in heldout_prompts()])
        wheels = training_prompts(seed)
        for number in range(worker, 10**6, workers):
            name = f"shard-{number:05d}.safetensors"
            if (self.out / name).exists():
                continue
            if response_tokens(self.out) >= tokens:
                return
            began = time.perf_counter()
            rng = random.Random(f"{seed}-{number}")
            torch.manual_seed(rng.getrandbits(32))
            prompts = [self.encode(row["turns"]) for row in wheels[number * BATCH : (number + 1) * BATCH]]
            limit = LONG if prompts else SHORT
            if not prompts:
                prompts = self.self_written(int(BATCH * SELF_WRITTEN), rng)
            while len(prompts) < BATCH:
                prompts.append(self.encode(template_prompt(rng)["turns"]))
            fresh = self.write(name, [p for p in prompts if len(p) <= limit])
            report(response_tokens(self.out), fresh / (time.perf_counter() - began))


def _sample(logits: torch.Tensor) -> torch.Tensor:
    return torch.multinomial(logits.float().softmax(-1), 1)[:, 0]


def response_tokens(folder: Path) -> int:
    """Response tokens in the training shards of `folder`."""
    total = 0
    for path in folder.glob("shard-*.safetensors"):
        with safe_open(path, "pt") as shard:
            total += len(shard.get_tensor("tokens")) - int(shard.get_tensor("prompt_lens").sum())
    return total
