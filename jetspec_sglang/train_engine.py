"""Answers of the target through SGLang's engine, for the data stage where there is an accelerator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from jetspec_sglang.drafters.training.errors import TrainError
from jetspec_sglang.drafters.training.shards import Tokens

from .serving import Server, ServerError


class EngineGenerator:
    """A plain SGLang server of the target; a batch of prompts is one request, which it schedules itself.

    It gives tokens alone: the features are the work of the stage `features`.
    """

    gives_features = False

    def __init__(self, target: str, *more_args: str) -> None:
        self.server = Server(["--model-path", target, "--skip-tokenizer-init", *more_args])

    def __enter__(self) -> EngineGenerator:
        try:
            self.server.start(timeout=1200)
        except ServerError as error:
            raise TrainError(f"SGLang could not serve the target for the stage `data`: {error}") from error
        return self

    def __exit__(self, *exc: object) -> None:
        self.server.stop()

    def answer(
        self, prompts: list[list[int]], max_new_tokens: int, stop_ids: set[int], sample: bool = False
    ) -> Iterator[Tokens]:
        """See `Generator.answer`."""
        params: dict[str, Any] = {
            "temperature": 1.0 if sample else 0.0,
            "max_new_tokens": max_new_tokens,
            "stop_token_ids": sorted(stop_ids),
        }
        answers = self.server.generate(input_ids=prompts, sampling_params=params)
        for prompt, answer in zip(prompts, answers, strict=True):
            yield Tokens(torch.tensor(prompt + answer["output_ids"]), len(prompt))
