"""The measuring of `jetspec quality`: answers, rounds and cost of what the command has checked."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

import torch
from transformers import AutoConfig

from .bench import interleave
from .builtin.prompts import Prompt as Question
from .compare import CompareError
from .drafters.head_config import HeadConfig
from .drafters.head_tensors import HeadError
from .drafters.quality import cost
from .drafters.quality.answers import greedy_answers
from .drafters.quality.heads import LoadedHead, load_head, longest_block
from .drafters.quality.rounds import Analysis
from .drafters.quality.rows import Cost, Head, Measured, Prompt, Round
from .drafters.training.data import ChatText
from .drafters.training.errors import TrainError
from .drafters.training.generate import TransformersGenerator
from .drafters.training.sources import Row
from .machine import describe

COST_REPEATS = 5

Status = Callable[[str], AbstractContextManager]
"""Shows what is going on, as long as it is entered."""


@dataclass(frozen=True)
class Request:
    """What was asked for, checked. Heads are folders by label."""

    target: Path
    heads: dict[str, Path]
    prompts: list[Question]
    rounds: int
    budget: int
    cost: bool
    dtype: str


def measure(request: Request, status: Status) -> Measured:
    """All of it, on the accelerator if there is one.

    Raises:
        CompareError: target, heads or prompts don't suit.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype, shape = getattr(torch, request.dtype), AutoConfig.from_pretrained(request.target)
    try:
        heads = [
            load_head(label, folder, shape.num_hidden_layers, dtype, device)
            for label, folder in request.heads.items()
        ]
        new_tokens = request.rounds * longest_block(heads)
        text = ChatText(request.target)
        questions = _questions(request.prompts, text, shape.max_position_embeddings - new_tokens)
        taps = tuple(sorted({tap for head in heads for tap in head.taps}))
        generator = TransformersGenerator(request.target, taps, dtype, device)
    except (HeadError, TrainError) as error:
        raise CompareError(f"{error}.") from error
    with status("Answering"):
        answers = greedy_answers(generator, questions, new_tokens, text.stop_ids)
    analysis = Analysis(generator.model, taps, heads, text.tokenizer.decode, request.budget)
    rounds: list[Round] = []
    with status("Drafting"):
        for number, answer in enumerate(answers):
            rounds += analysis.rounds(number, answer, request.rounds)
    if not rounds:
        raise CompareError(
            f"No answer goes on for a block of {analysis.block} tokens; give --prompts that ask for more."
        )
    costs: list[Cost] = []
    if request.cost:
        with status("Timing"):
            costs = cost.measure(
                generator, heads, partial(interleave, repeats=COST_REPEATS, clock=perf_counter)
            )
    return Measured(
        machine=describe(),
        target=request.target.name,
        dtype=request.dtype,
        budget=request.budget,
        heads={head.label: _described(head, request.heads[head.label]) for head in heads},
        prompts=[Prompt(domain=each.domain, label=each.label) for each in request.prompts],
        rounds=rounds,
        cost=costs,
    )


def _questions(prompts: list[Question], text: ChatText, room: int) -> list[list[int]]:
    """The first turns as the target reads them. CompareError for one that leaves no room for an answer."""
    found = [text.prompt(Row([{"role": "user", "content": prompt.turns[0]}])) for prompt in prompts]
    for number, tokens in enumerate(found):
        if len(tokens) > room:
            raise CompareError(
                f"Prompt {number} has {len(tokens)} tokens, but the target has room for {room} before the answer; "
                "leave it out, or ask for fewer --rounds."
            )
    return found


def _described(head: LoadedHead, folder: Path) -> Head:
    config = head.model.config
    corrector = config.corrector if isinstance(config, HeadConfig) else None
    drafter = config.drafter + (f" with a {corrector.kind} corrector" if corrector else "")
    return Head(folder=folder.name, drafter=drafter, drafted=head.depth, vocabulary=head.vocabulary)
