"""The built-in target and its trained head as servers, and prompts that stress token identity."""

import json
import random
from importlib.resources import files
from pathlib import Path

import torch
from transformers import AutoTokenizer

from jetspec_sglang.builtin.head import builtin_head
from jetspec_sglang.builtin.target import builtin_target
from jetspec_sglang.drafters.checkpoint import load_head_tensors, read_head_config, write_head
from jetspec_sglang.drafters.head_config import SpecBlockConfig
from jetspec_sglang.drafters.spec_block_head import SpecBlockHead

CONTEXT = 1024
COMMON = (
    *("--model-path", str(builtin_target()), "--dtype", "float32", "--context-length", str(CONTEXT)),
    *("--max-total-tokens", "12000", "--chunked-prefill-size", "128", "--random-seed", "1"),
)


def jetspec_flags(budget: int, overlap: bool, head: Path | None = None) -> tuple[str, ...]:
    return (
        *(
            "--speculative-algorithm",
            "JETSPEC",
            "--speculative-draft-model-path",
            str(head or builtin_head()),
        ),
        *("--speculative-num-draft-tokens", str(budget)),
        *(() if overlap else ("--disable-overlap-schedule",)),
    )


def spec_block_head(folder: Path, positions: int) -> Path:
    """The trained head in blocks of `positions`: its shifts and its rank head add nothing."""
    trained = read_head_config(builtin_head())
    shape = trained.model_dump(exclude={"causal", "corrector", "shifted"})
    head = SpecBlockHead(SpecBlockConfig(**shape, positions=positions, ranks=1))
    for layer in (*(shift.proj for shift in head.shifts), head.rank_head):
        torch.nn.init.zeros_(layer.weight)
    tensors = head.state_dict() | load_head_tensors(builtin_head())
    write_head(folder, head.config, tensors, "For tests.")
    return folder


def suffix_flags(budget: int) -> tuple[str, ...]:
    """Of a server that drafts without a head."""
    return (
        *("--speculative-algorithm", "JETSPEC", "--jetspec-drafter", "suffix"),
        *("--speculative-num-draft-tokens", str(budget)),
    )


def prompts(count: int, seed: int = 0) -> list[tuple[list[int], int]]:
    """(prompt ids, new tokens): held-out chats, one token, random tokens, repetition, shared prefixes, long ones,
    and some that run into the context's end."""
    rng = random.Random(seed)
    tokenizer = AutoTokenizer.from_pretrained(builtin_target())
    rows = [json.loads(line) for line in (files("jetspec_sglang") / "builtin" / "heldout.jsonl").open()]
    chats = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": row["turns"][0]}], add_generation_prompt=True, return_dict=False
        )
        for row in rows
    ]
    book = [token for chat in chats for token in chat]
    cases: list[tuple[list[int], int]] = []
    while len(cases) < count:
        chat = rng.choice(chats)
        kind = len(cases) % 8
        if kind < 3:
            cases.append((chat, rng.randint(1, 64)))
        elif kind == 3:
            cases.append(([rng.randrange(17, 49000)], 24))
        elif kind == 4:
            cases.append((chat[-12:] * rng.randint(2, 12), 40))  # loops: whole blocks are accepted
        elif kind == 5:
            cases.append((chat[: len(chat) // 2] + rng.choice(chats)[-20:], 32))  # a prefix others share
        elif kind == 6:
            start = rng.randrange(len(book) - 700)
            cases.append((book[start : start + rng.randint(300, 700)], 24))
        else:  # SGLang takes inputs up to 6 tokens below the context
            start, room = rng.randrange(len(book) - CONTEXT), rng.randint(6, 40)
            cases.append((book[start : start + CONTEXT - 1 - room], room))  # ends with the context
    return cases


def ask(server, case: tuple[list[int], int]) -> dict:
    ids, new_tokens = case
    params = {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True}
    return server.generate(input_ids=ids, sampling_params=params)
