"""Training data on disk and in memory: token sequences, and what the target made of them.

A shard is one safetensors file with S sequences of M tokens in all:

    tokens        [M]      int32     all sequences one after another
    offsets       [S+1]    int64     sequence s is tokens[offsets[s]:offsets[s+1]]
    prompt_lens   [S]      int32     its first prompt_lens[s] tokens are the prompt

and, once it has features,

    taps          [M, K*H] bfloat16  outputs of the target's layers ``target_layer_ids``, side by side
    topk_ids      [M, 16]  int32     the target's likeliest tokens after position t, for t >= prompt_len-1
    topk_logprobs [M, 16]  float16   their full-vocabulary log-probabilities at T=1

Its metadata holds a JSON object under "jetspec": target, source, and target_layer_ids and hidden_size of the
taps. ``shard-*`` files are for training, ``heldout-*`` files for evaluation only. Files are memory-mapped and
read a sequence at a time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .errors import TrainError

TOPK = 16


@dataclass(frozen=True)
class Tokens:
    """A text: its first ``prompt_len`` tokens are the prompt, the rest is the response."""

    tokens: Tensor  # [L] int64
    prompt_len: int

    def anchors(self) -> range:
        """Positions a block may start at: a response token with at least one token after it."""
        return range(self.prompt_len, len(self.tokens) - 1)


@dataclass(frozen=True)
class TopK:
    """The target's likeliest tokens after each position."""

    ids: Tensor  # [L, 16] int32
    logprobs: Tensor  # [L, 16] float16

    def at(self, rows: Tensor) -> TopK:
        return TopK(self.ids[rows], self.logprobs[rows])


@dataclass(frozen=True)
class Hidden:
    """The target's last hidden state at each position: times lm_head, its whole distribution after it."""

    states: Tensor  # [L, H]

    def at(self, rows: Tensor) -> Hidden:
        return Hidden(self.states[rows])


Teacher = TopK | Hidden


@dataclass(frozen=True)
class Sequence(Tokens):
    """A text with the target's view of it."""

    taps: Tensor  # [L, K*H] bfloat16; zero at the last token, which is never context
    teacher: Teacher


class Shard:
    """One file; small tensors in memory, wide ones sliced from the map."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = safe_open(path, framework="pt")
            self.meta: dict = json.loads(self._file.metadata()["jetspec"])
        except (SafetensorError, TypeError, KeyError, json.JSONDecodeError) as error:
            raise TrainError(f"{path} is not a shard of `jetspec train`: remove it ({error})") from error
        self.offsets: list[int] = self._file.get_tensor("offsets").tolist()
        self.prompt_lens: list[int] = self._file.get_tensor("prompt_lens").tolist()
        self.has_features = "taps" in self._file.keys()  # noqa: SIM118
        names = ("tokens", "taps", "topk_ids", "topk_logprobs") if self.has_features else ("tokens",)
        self._slices = {name: self._file.get_slice(name) for name in names}
        if self.has_features:
            width, found = len(self.taps_of[0]) * self.taps_of[1], self._slices["taps"].get_shape()
            if found != [self.offsets[-1], width]:
                raise TrainError(f"{path}: taps are {found}, expected {[self.offsets[-1], width]}: remove it")

    @property
    def taps_of(self) -> tuple[tuple[int, ...], int]:
        """Target layers and hidden size of the taps."""
        return tuple(self.meta["target_layer_ids"]), int(self.meta["hidden_size"])

    @property
    def response_tokens(self) -> int:
        return self.offsets[-1] - sum(self.prompt_lens)

    def lengths(self) -> list[int]:
        return [end - start for start, end in zip(self.offsets[:-1], self.offsets[1:], strict=True)]

    def tokens(self, index: int) -> Tokens:
        start, end = self.offsets[index], self.offsets[index + 1]
        return Tokens(self._slices["tokens"][start:end].long(), self.prompt_lens[index])

    def read(self, index: int) -> Sequence:
        start, end = self.offsets[index], self.offsets[index + 1]
        part = {name: cut[start:end] for name, cut in self._slices.items()}
        return Sequence(
            part["tokens"].long(),
            self.prompt_lens[index],
            part["taps"],
            TopK(part["topk_ids"], part["topk_logprobs"]),
        )


def write_shard(path: Path, texts: list[Tokens] | list[Sequence], description: dict) -> None:
    """Write `texts` as one shard, atomically; with features if they are sequences."""
    lengths = torch.tensor([len(text.tokens) for text in texts])
    tensors = {
        "tokens": torch.cat([text.tokens for text in texts]).int(),
        "offsets": F.pad(lengths.cumsum(0), (1, 0)),
        "prompt_lens": torch.tensor([text.prompt_len for text in texts], dtype=torch.int32),
    }
    sequences = [text for text in texts if isinstance(text, Sequence)]
    if sequences:
        teachers = [each.teacher for each in sequences if isinstance(each.teacher, TopK)]
        tensors["taps"] = torch.cat([each.taps for each in sequences])
        tensors["topk_ids"] = torch.cat([teacher.ids for teacher in teachers])
        tensors["topk_logprobs"] = torch.cat([teacher.logprobs for teacher in teachers])
    partial = path.with_suffix(".partial")
    save_file(tensors, partial, metadata={"jetspec": json.dumps(description)})
    partial.rename(path)  # readers see a whole shard or none


@dataclass(frozen=True)
class Ref:
    """A sequence that has not been read yet."""

    shard: Shard
    index: int
    length: int
    anchors: int


class Folder:
    """The shards of a folder that may still be growing; call ``refs`` again to see new ones."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: dict[str, Shard] = {}

    def names(self, kind: str = "shard") -> list[str]:
        return sorted(file.name for file in self.path.glob(f"{kind}-*.safetensors"))

    def shard(self, name: str) -> Shard:
        if name not in self._open:
            self._open[name] = Shard(self.path / name)
        return self._open[name]

    def response_tokens(self) -> int:
        """Response tokens in the training shards."""
        return sum(self.shard(name).response_tokens for name in self.names())

    def require_taps(self, target_layer_ids: tuple[int, ...], hidden_size: int) -> None:
        """Raise TrainError unless all shards have features, and of these layers."""
        for name in self.names() + self.names("heldout"):
            shard = self.shard(name)
            if not shard.has_features:
                raise TrainError(
                    f"{shard.path} has no features: run the stage `features` into another folder"
                )
            if shard.taps_of != (target_layer_ids, hidden_size):
                raise TrainError(
                    f"{shard.path} holds taps of layers {list(shard.taps_of[0])} of width {shard.taps_of[1]}, not "
                    f"{list(target_layer_ids)} of width {hidden_size}: set features.target_layer_ids, or "
                    "features.folder to a new folder"
                )

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
        # What did not fill a batch joins the next group.
        pool, batch = batch + order[start : start + group], []
        for ref in sorted(pool, key=lambda ref: ref.length):
            batch.append(ref)
            if sum(min(each.anchors, per_sequence) for each in batch) >= batch_anchors:
                batches.append(batch)
                batch = []
    if batch and (not batches or len(batch) > len(batches[-1]) // 2):  # a small rest would be a noisy step
        batches.append(batch)
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]
