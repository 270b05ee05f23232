"""The frozen target in training: its layers' outputs (taps), and its view of whole texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from jetspec_sglang.kernels.top_k import top_k_logprobs

from ..checkpoint import default_target_layer_ids
from .config import TrainConfig
from .errors import TrainError
from .shards import TOPK, Hidden, Sequence, Tokens, TopK

PADDED_TOKENS = 8192  # of a forward over whole texts
LOGIT_ROWS = 512  # of which logits are kept at a time


def load_model(target: str | Path, dtype: torch.dtype, **how: Any) -> Any:
    """The target as a frozen transformers model, whose classes share no typed one.

    Raises TrainError if it can't be loaded or has no decoder layers.
    """
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(target, dtype=dtype, **how)
    except (OSError, ValueError) as error:
        raise TrainError(f"target {target} is not a language model within reach: {error}") from error
    decoder(model)
    return model.eval().requires_grad_(False)


def decoder(model: nn.Module) -> Any:
    """What holds `embed_tokens`, `layers` and `norm`: LlamaModel, Qwen3Model, …, which share no class."""
    found = getattr(model, "model", None)
    if not isinstance(getattr(found, "layers", None), nn.ModuleList) or not hasattr(found, "norm"):
        raise TrainError(
            f"the layers of a {type(model).__name__} can't be tapped: take a target built like Llama or Qwen3, "
            "with `model.layers` and `model.norm`"
        )
    return found


def target_layer_ids(config: TrainConfig, target_config: Any) -> tuple[int, ...]:
    """The taps that are asked for, or as many as the head has layers (at least three), spread evenly."""
    layers = target_config.num_hidden_layers
    taps = config.features.target_layer_ids
    if taps is None:
        return default_target_layer_ids(layers, max(3, config.head.layers))
    if not taps or not all(0 <= tap < layers - 1 for tap in taps):
        raise TrainError(
            f"features.target_layer_ids {list(taps)} must be layers of the target from 0 to {layers - 2}: the output "
            f"of the last one, {layers - 1}, is not handed out by SGLang"
        )
    return taps


class Tapped:
    """Outputs of some decoder layers in the model's latest forward."""

    def __init__(self, model: nn.Module, layer_ids: Iterable[int]) -> None:
        self.layer_ids = tuple(layer_ids)
        self._seen: dict[int, Tensor] = {}
        for layer_id in self.layer_ids:
            decoder(model).layers[layer_id].register_forward_hook(self._hook(layer_id))

    def _hook(self, layer_id: int):
        def hook(_module, _args, output) -> None:
            self._seen[layer_id] = output[0] if isinstance(output, tuple) else output

        return hook

    def taps(self) -> Tensor:
        """[b, n, K*H], in the order of the layer ids."""
        return torch.cat([self._seen[i] for i in self.layer_ids], dim=-1)


class TextReader:
    """The target's view of whole texts, many at a time: taps, and its distributions as a teacher."""

    def __init__(
        self, target: str | Path, layer_ids: Iterable[int], dtype: torch.dtype, device="cpu"
    ) -> None:
        self.model = load_model(target, dtype).to(device)
        self.device = device
        self.tapped = Tapped(self.model, layer_ids)

    def read(self, texts: list[Tokens], whole: bool) -> list[Sequence]:
        """Features of `texts`; the teacher is the last hidden state if `whole`, else the top-16 distribution."""
        order = sorted(
            range(len(texts)), key=lambda i: len(texts[i].tokens)
        )  # neighbours in length: less padding
        done: dict[int, Sequence] = {}
        for group in _groups(order, [len(text.tokens) for text in texts]):
            for index, sequence in zip(group, self._forward([texts[i] for i in group], whole), strict=True):
                done[index] = sequence
        return [done[i] for i in range(len(texts))]

    @torch.no_grad()
    def _forward(self, texts: list[Tokens], whole: bool) -> Iterator[Sequence]:
        # Padding is behind the text, where a causal model does not see it.
        ids = pad_sequence([text.tokens for text in texts], batch_first=True).to(self.device)
        hidden = decoder(self.model)(input_ids=ids, use_cache=False).last_hidden_state
        taps = self.tapped.taps().bfloat16().cpu()
        for i, text in enumerate(texts):
            length = len(text.tokens)
            mine = taps[i, :length].clone()
            mine[-1] = 0
            teacher = (
                Hidden(hidden[i, :length]) if whole else self._top_k(hidden[i, :length], text.prompt_len)
            )
            yield Sequence(text.tokens, text.prompt_len, mine, teacher)

    def _top_k(self, hidden: Tensor, prompt_len: int) -> TopK:
        ids = torch.zeros(len(hidden), TOPK, dtype=torch.int32)
        logprobs = torch.zeros(len(hidden), TOPK, dtype=torch.float16)
        for start in range(prompt_len - 1, len(hidden) - 1, LOGIT_ROWS):
            rows = slice(start, min(start + LOGIT_ROWS, len(hidden) - 1))
            top, index = top_k_logprobs(self.model.get_output_embeddings()(hidden[rows]), TOPK)
            ids[rows], logprobs[rows] = index.int().cpu(), top.half().cpu()
        return TopK(ids, logprobs)


def _groups(order: list[int], lengths: list[int]) -> Iterator[list[int]]:
    """Runs of `order`, ascending in length, of at most PADDED_TOKENS tokens with padding."""
    group: list[int] = []
    for index in order:
        if group and (len(group) + 1) * lengths[index] > PADDED_TOKENS:
            yield group
            group = []
        group.append(index)
    if group:
        yield group
