"""The texts that all heads draft in: the target's own greedy answers, and the prefixes in them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..training.generate import TransformersGenerator
from ..training.shards import Sequence

BATCH = 16  # prompts that are answered at once: of similar lengths, as they are padded to the longest


def greedy_answers(
    generator: TransformersGenerator, prompts: list[list[int]], new_tokens: int, stop_ids: set[int]
) -> list[Sequence]:
    """The target's answers of at most so many tokens, in the order of the prompts, with its features."""
    answers: dict[tuple[int, ...], Sequence] = {}
    distinct = sorted(set(map(tuple, prompts)), key=lambda prompt: (len(prompt), prompt))
    for start in range(0, len(distinct), BATCH):
        for answer in generator.answer(
            [list(prompt) for prompt in distinct[start : start + BATCH]], new_tokens, stop_ids
        ):
            answers[tuple(answer.tokens[: answer.prompt_len].tolist())] = answer
    return [answers[tuple(prompt)] for prompt in prompts]


def anchors_of(sequence: Sequence, block: int, rounds: int) -> Tensor:
    """[A] int64: the answer's first token and every `block`-th behind it, at most `rounds`.

    Behind each the answer goes on for a whole block, so A may be 0.
    """
    first, behind_last = sequence.prompt_len, len(sequence.tokens) - block + 1
    return torch.tensor(range(first, behind_last, block)[:rounds], dtype=torch.int64)


def with_taps(sequence: Sequence, layers: tuple[int, ...], wanted: tuple[int, ...]) -> Sequence:
    """The same text with the features of some layers of those that it has, in the order of `wanted`."""
    return replace(sequence, taps=pick_taps(sequence.taps, layers, wanted))


def pick_taps(taps: Tensor, layers: tuple[int, ...], wanted: tuple[int, ...]) -> Tensor:
    """[..., L*H] of `layers` -> [..., K*H] of `wanted`."""
    by_layer = dict(zip(layers, taps.chunk(len(layers), dim=-1), strict=True))
    return torch.cat([by_layer[layer] for layer in wanted], dim=-1)
