"""From sequences to one padded training batch: anchors, block slots, attention mask and labels.

For an anchor position a (a response token that has no feature yet) the head sees the taps of positions < a
and drafts the tokens a+1, a+2, ...: depth k >= 1 is labelled with token a+k, and the teacher is the target's
distribution after position a+k-1. The anchor itself is no label. A block drafter reads the block
[token a, MASK, MASK, ...] at positions a, a+1, ...; an autoregressive one the tokens themselves.

Depth weights exp(-(k-1)/gamma) are applied by sampling instead of multiplying: an anchor's labels end after
depth k with the probability that makes depth k appear with exactly that weight. The expectation of the loss is
the same, and depths nobody would have learned much from are never computed (gamma 4, block 8: 3.7 depths instead
of 7). The slots of a causal block end with the labels, since they do not see the ones cut off; a bidirectional
block is always whole.

A spec-block drafter goes on in a second round of blocks below the anchors that have labels left, in a third one below
those with still more, and so on, each from a position of the block before that is drawn at random.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from ..head_config import AnyHead, AutoregressiveConfig, HeadConfig, SpecBlockConfig
from .shards import Hidden, Sequence, Teacher, TopK

Cut = tuple[int, int]  # an anchor's position, and how many depths below it are labelled


@dataclass(frozen=True)
class Slots:
    """The blocks of b sequences side by side, S slots each (padded)."""

    ids: Tensor  # [b, S] int64: anchor token or mask
    positions: Tensor  # [b, S] int64, absolute
    block_of: Tensor  # [b, S] int64: number of the block in its sequence, -1 is padding
    context_len: Tensor  # [b, S] int64: context tokens the slot may see, all before its anchor

    def mask(self, context: int, causal: bool) -> Tensor:
        """[b, S, context + S] bool, True = may attend: the slot's own context and block, no other block's.

        Padding is a block of its own, so that no row is without a key.
        """
        block = self.block_of[:, :, None] == self.block_of[:, None, :]
        if causal:
            block &= self.positions[:, :, None] >= self.positions[:, None, :]
        seen = torch.arange(context, device=block.device) < self.context_len[:, :, None]
        return torch.cat((seen, block), dim=2)


@dataclass(frozen=True)
class Going:
    """Blocks of a spec-block head that one forward runs, N of them."""

    slots: Slots
    starts: Tensor  # [N] int64, where they begin, in [b*S]
    above: Tensor  # [N] int64, the slots that their first tokens were drafted from, in [b*S'] of the forward before


@dataclass(frozen=True)
class Paths:
    """The text from each of n anchors on, of which the first k tokens lead to the row at depth k."""

    tokens: Tensor  # [n, B-1] int64, zeros behind the text's end
    anchors: Tensor  # [R] int64, which of the n a label is below


@dataclass(frozen=True)
class Batch:
    """b sequences of T tokens, A anchors each (padded), R labels."""

    tokens: Tensor  # [b, T] int64
    taps: Tensor  # [b, T, K*H] bfloat16
    anchors: Tensor  # [b, A] int64, padded with 1
    slots: Slots | None  # of drafters of one block
    # Where the head's output for a label is: in [b*S] for block drafters, that of all forwards one after another for
    # spec-block ones, in [b*A*(B-1)] else.
    rows: Tensor  # [R] int64
    labels: Tensor  # [R] int64
    depths: Tensor  # [R] int64, 1..block_size-1
    teacher: Teacher  # R rows
    count: int  # anchors in all
    paths: Paths | None = None  # of heads with a path corrector
    forwards: tuple[Going, ...] = ()  # of spec-block drafters

    def below(self, depth: int) -> Batch:
        """Without the labels that are at most this deep, unless all are."""
        deep = self.depths > depth
        if not bool(deep.any()):
            return self
        of = None if self.paths is None else replace(self.paths, anchors=self.paths.anchors[deep])
        return replace(
            self,
            rows=self.rows[deep],
            labels=self.labels[deep],
            depths=self.depths[deep],
            teacher=self.teacher.at(deep),
            paths=of,
        )

    def to(self, device: torch.device | str) -> Batch:
        return _moved(self, device)


def _moved(value: Any, device: torch.device | str) -> Any:
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, tuple):
        return tuple(_moved(each, device) for each in value)
    if isinstance(value, Batch | Going | Paths | Slots | TopK | Hidden):
        return replace(value, **{f.name: _moved(getattr(value, f.name), device) for f in fields(value)})
    return value


def depth_weights(block_size: int, gamma: float) -> list[float]:
    """Weight of depth k = 1..block_size-1; gamma 0 is uniform."""
    return [math.exp(-(k - 1) / gamma) if gamma else 1.0 for k in range(1, block_size)]


def sample_anchors(
    sequence: Sequence, count: int, block_size: int, gamma: float, generator: torch.Generator
) -> list[Cut]:
    """Up to ``count`` different anchors, by position, with the depths that are labelled."""
    candidates = sequence.anchors()
    chosen = torch.randperm(len(candidates), generator=generator)[:count].sort().values.tolist()
    draws = torch.rand(len(chosen), generator=generator).tolist()
    weights = depth_weights(block_size, gamma)
    last = len(sequence.tokens) - 1
    return [
        (candidates[index], min(sum(draw < weight for weight in weights), last - candidates[index]))
        for index, draw in zip(chosen, draws, strict=True)
    ]


def collate(
    sequences: list[Sequence],
    cuts: list[list[Cut]],
    config: AnyHead,
    generator: torch.Generator | None = None,
) -> Batch:
    """One batch of the labels that ``cuts`` names for each sequence; ``generator`` as `going_on` says."""
    # An autoregressive head also reads the drafted tokens, which the text has.
    reach = config.block_size if isinstance(config, AutoregressiveConfig) else 0
    context = max(each[-1][0] for each in cuts) + reach
    tokens = torch.zeros(len(sequences), context, dtype=torch.int64)
    taps = torch.zeros(len(sequences), context, config.tap_width, dtype=torch.bfloat16)
    anchors = torch.ones(len(sequences), max(map(len, cuts)), dtype=torch.int64)
    starts, depths, of_sequence, of_anchor = [], [], [], []
    for i, (sequence, each) in enumerate(zip(sequences, cuts, strict=True)):
        used = min(each[-1][0] + reach, len(sequence.tokens))
        tokens[i, :used] = sequence.tokens[:used]
        taps[i, :used] = sequence.taps[:used]
        positions, counts = (torch.tensor(column) for column in zip(*each, strict=True))
        anchors[i, : len(each)] = positions
        index = torch.arange(len(each)).repeat_interleave(counts)
        starts.append(positions[index])
        depths.append(_count(counts) + 1)
        of_sequence.append(torch.full_like(index, i))
        of_anchor.append(index)
    at = [start + depth for start, depth in zip(starts, depths, strict=True)]
    depth, row, column = torch.cat(depths), torch.cat(of_sequence), torch.cat(of_anchor)
    slots: Slots | None = None
    forwards: tuple[Going, ...] = ()
    if isinstance(config, HeadConfig):
        slots, first = block_slots(sequences, cuts, config)
        rows = row * slots.ids.shape[1] + first[row, column] + depth
    elif isinstance(config, SpecBlockConfig):
        forwards, table = going_on(sequences, cuts, config, generator)
        rows = table[row, column, depth - 1]
    else:
        rows = (row * anchors.shape[1] + column) * (config.block_size - 1) + depth - 1
    return Batch(
        tokens=tokens,
        taps=taps,
        anchors=anchors,
        slots=slots,
        rows=rows,
        labels=torch.cat([sequence.tokens[each] for sequence, each in zip(sequences, at, strict=True)]),
        depths=depth,
        teacher=_joined([s.teacher.at(each - 1) for s, each in zip(sequences, at, strict=True)]),
        count=sum(map(len, cuts)),
        paths=paths(sequences, cuts, config.block_size) if has_corrector(config) else None,
        forwards=forwards,
    )


def has_corrector(config: AnyHead) -> bool:
    return isinstance(config, HeadConfig) and config.corrector is not None


def paths(sequences: list[Sequence], cuts: list[list[Cut]], block_size: int) -> Paths:
    """Of labels in the order of `collate`."""
    tokens, counts = [], []
    for sequence, each in zip(sequences, cuts, strict=True):
        tokens.append(text_behind(sequence, torch.tensor([anchor for anchor, _ in each]), block_size - 1))
        counts += [depth for _, depth in each]
    return Paths(torch.cat(tokens), torch.arange(len(counts)).repeat_interleave(torch.tensor(counts)))


def text_behind(sequence: Sequence, positions: Tensor, length: int) -> Tensor:
    """[A, length] int64: the tokens from each of the positions [A] on, zeros behind the text's end."""
    padded = torch.nn.functional.pad(sequence.tokens, (0, length))
    return padded[positions[:, None] + torch.arange(length)]


def going_on(
    sequences: list[Sequence],
    cuts: list[list[Cut]],
    config: SpecBlockConfig,
    generator: torch.Generator | None,
) -> tuple[tuple[Going, ...], Tensor]:
    """The forwards that reach all labels, and the row of each, [b, A, B-1] int64, of no use where there is none.

    Rows count the slots of all forwards, one after another. A block speaks for the labels up to where the next one
    starts: at a position drawn by ``generator``, as trees go on from any, or else at the last.
    """
    size = (len(cuts), max(map(len, cuts)))
    wanted = torch.zeros(size, dtype=torch.int64)  # labels of each anchor
    for i, each in enumerate(cuts):
        wanted[i, : len(each)] = torch.tensor([depth for _, depth in each])
    table = torch.zeros(*size, config.block_size - 1, dtype=torch.int64)
    done, begins, said = (torch.zeros_like(wanted) for _ in range(3))  # said: labels of the blocks before
    found: list[Going] = []
    before = 0  # slots of the forwards before
    while bool((active := wanted > done).any()):
        above = (begins + said)[active]
        said = torch.full(size, config.positions)
        if generator is not None:
            said = torch.randint(1, config.positions + 1, size, generator=generator)
        said = torch.minimum(said, wanted - done)
        contexts = [
            [anchor for (anchor, _), on in zip(each, row, strict=False) if on]
            for each, row in zip(cuts, active.tolist(), strict=True)
        ]
        here = [
            [(anchor + offset, labels) for anchor, offset, labels in zip(ends, *moved, strict=True)]
            for ends, *moved in zip(contexts, *_rows_of(active, done, said), strict=True)
        ]
        slots, first = block_slots(sequences, here, config, contexts)
        in_row = torch.cat([each[: len(ends)] for each, ends in zip(first, contexts, strict=True)])
        starts = active.nonzero()[:, 0] * slots.ids.shape[1] + in_row
        begins = begins.masked_scatter(active, starts)
        for step in range(config.positions):
            at = active & (said > step)
            table[(*at.nonzero(as_tuple=True), (done + step)[at])] = before + begins[at] + step + 1
        found.append(Going(slots, starts, above if found else torch.zeros_like(above)))
        done, before = done + said, before + slots.ids.numel()
    return tuple(found), table


def _rows_of(active: Tensor, *columns: Tensor) -> list[list[list[int]]]:
    """Of each of ``columns`` [b, A], what is active, row by row."""
    return [[row[on].tolist() for row, on in zip(column, active, strict=True)] for column in columns]


def block_slots(
    sequences: list[Sequence],
    cuts: list[list[Cut]],
    config: HeadConfig | SpecBlockConfig,
    contexts: list[list[int]] | None = None,
) -> tuple[Slots, Tensor]:
    """Slots of all blocks, and [b, A] where in its row each block begins.

    ``contexts``: how many tokens each block sees, if not all that are before its first one, which ``cuts`` names.
    """
    whole = isinstance(config, HeadConfig) and not config.causal

    def length(depth: int) -> int:
        return config.block_size if whole else 1 + depth

    size = (len(cuts), max(sum(length(depth) for _, depth in each) for each in cuts))
    ids = torch.full(size, config.mask_token_id)
    positions = torch.zeros(size, dtype=torch.int64)
    context_len = torch.zeros(size, dtype=torch.int64)
    block_of = torch.full(size, -1)
    first = torch.zeros(len(cuts), max(map(len, cuts)), dtype=torch.int64)
    for i, (sequence, each) in enumerate(zip(sequences, cuts, strict=True)):
        anchors = torch.tensor([anchor for anchor, _ in each], dtype=torch.int64)
        lengths = torch.tensor([length(depth) for _, depth in each], dtype=torch.int64)
        total, starts = int(lengths.sum()), lengths.cumsum(0) - lengths
        first[i, : len(each)] = starts
        ids[i, starts] = sequence.tokens[anchors]
        seen = anchors if contexts is None else torch.tensor(contexts[i], dtype=torch.int64)
        context_len[i, :total] = seen.repeat_interleave(lengths)
        positions[i, :total] = anchors.repeat_interleave(lengths) + _count(lengths)
        block_of[i, :total] = torch.arange(len(each)).repeat_interleave(lengths)
    return Slots(ids, positions, block_of, context_len), first


def _count(lengths: Tensor) -> Tensor:
    """[3, 2] -> [0, 1, 2, 0, 1]."""
    return torch.arange(int(lengths.sum())) - (lengths.cumsum(0) - lengths).repeat_interleave(lengths)


def _joined(teachers: list[Teacher]) -> Teacher:
    top_k = [each for each in teachers if isinstance(each, TopK)]
    if top_k:
        return TopK(torch.cat([t.ids for t in top_k]), torch.cat([t.logprobs for t in top_k]))
    return Hidden(torch.cat([each.states for each in teachers if isinstance(each, Hidden)]))
