"""Reading the training data: token sequences with target features and target distributions.

A shard is one safetensors file with S sequences of M tokens in all:

    tokens        [M]      int32     all sequences one after another
    offsets       [S+1]    int64     sequence s is tokens[offsets[s]:offsets[s+1]]
    prompt_lens   [S]      int32     its first prompt_lens[s] tokens are the prompt
    taps          [M, K*H] bfloat16  outputs of the target's layers ``target_layer_ids``, side by side
    topk_ids      [M, 16]  int32     the target's likeliest tokens after position t, for t >= prompt_len-1
    topk_logprobs [M, 16]  float16   their full-vocabulary log-probabilities at T=1

Its metadata holds a JSON object under "jetspec": target_layer_ids, hidden_size, target, source. ``shard-*``
files are for training, ``heldout-*`` files for evaluation only. Files are memory-mapped and read a sequence
at a time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor


class DataError(ValueError):
    """The data folder does not hold what training needs."""


@dataclass(frozen=True)
class Sequence:
    tokens: Tensor  # [L] int64
    prompt_len: int
    taps: Tensor  # [L, K*H] bfloat16
    topk_ids: Tensor  # [L, 16] int32
    topk_logprobs: Tensor  # [L, 16] float16

    def anchors(self) -> range:
        """Positions a block may start at: a response token with at least one token after it."""
        return range(self.prompt_len, len(self.tokens) - 1)


class Shard:
    """One file; small tensors in memory, wide ones sliced from the map."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = safe_open(path, framework="pt")
        try:
            self.meta: dict = json.loads(self._file.metadata()["jetspec"])
            self.target_layer_ids = tuple(self.meta["target_layer_ids"])
            self.hidden_size = int(self.meta["hidden_size"])
        except (TypeError, KeyError) as error:
            raise DataError(f"{path}: no `jetspec` metadata with target_layer_ids and hidden_size") from error
        self.offsets: list[int] = self._file.get_tensor("offsets").tolist()
        self.prompt_lens: list[int] = self._file.get_tensor("prompt_lens").tolist()
        self._slices = {
            name: self._file.get_slice(name) for name in ("tokens", "taps", "topk_ids", "topk_logprobs")
        }
        width, found = len(self.target_layer_ids) * self.hidden_size, self._slices["taps"].get_shape()
        if found != [self.offsets[-1], width]:
            raise DataError(f"{path}: taps are {found}, expected {[self.offsets[-1], width]}")

    def lengths(self) -> list[int]:
        return [end - start for start, end in zip(self.offsets[:-1], self.offsets[1:], strict=True)]

    def read(self, index: int) -> Sequence:
        start, end = self.offsets[index], self.offsets[index + 1]
        part = {name: cut[start:end] for name, cut in self._slices.items()}
        return Sequence(
            tokens=part["tokens"].long(),
            prompt_len=self.prompt_lens[index],
            taps=part["taps"],
            topk_ids=part["topk_ids"],
            topk_logprobs=part["topk_logprobs"],
        )


@dataclass(frozen=True)
class Ref:
    """A sequence that has not been read yet."""

    shard: Shard
    index: int
    length: int
    anchors: int

    def read(self) -> Sequence:
        return self.shard.read(self.index)


class Folder:
    """The shards of a folder that may still be growing; call ``refs`` again to see new ones."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: dict[str, Shard] = {}

    def names(self, kind: str = "shard") -> list[str]:
        return sorted(file.name for file in self.path.glob(f"{kind}-*.safetensors"))

    def shard(self, name: str) -> Shard:
        if name not in self._open:
            shard = Shard(self.path / name)
            for other in self._open.values():
                if (other.target_layer_ids, other.hidden_size) != (shard.target_layer_ids, shard.hidden_size):
                    raise DataError(f"{shard.path} and {other.path} hold different taps")
                break
            self._open[name] = shard
        return self._open[name]

    def refs(self, names: list[str]) -> list[Ref]:
        """Every sequence of these shards that has room for at least one anchor."""
        found = []
        for name in names:
            shard = self.shard(name)
            for index, (length, prompt) in enumerate(zip(shard.lengths(), shard.prompt_lens, strict=True)):
                if length - 1 - prompt >= 1 and prompt >= 1:
                    found.append(Ref(shard, index, length, length - 1 - prompt))
        return found


def plan(
    refs: list[Ref], batch_anchors: int, per_sequence: int, generator: torch.Generator
) -> list[list[Ref]]:
    """One pass over the data as batches of about ``batch_anchors`` anchors, random yet with little padding.

    Shuffled sequences are cut into groups of some sixteen batches; inside a group, neighbours in length
    share a batch; the batches are shuffled once more so that length does not drift through the pass.
    """
    order = [refs[i] for i in torch.randperm(len(refs), generator=generator).tolist()]
    group = max(1, 16 * batch_anchors // per_sequence)
    batches: list[list[Ref]] = []
    batch: list[Ref] = []
    for start in range(0, len(order), group):
        pool, batch = (
            batch + order[start : start + group],
            [],
        )  # what did not fill a batch joins the next group
        for ref in sorted(pool, key=lambda ref: ref.length):
            batch.append(ref)
            if sum(min(each.anchors, per_sequence) for each in batch) >= batch_anchors:
                batches.append(batch)
                batch = []
    if batch and (not batches or len(batch) > len(batches[-1]) // 2):  # a small rest would be a noisy step
        batches.append(batch)
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]
