"""Losses of a head with a path corrector, against the large frozen lm_head.

The corrected row is the block's row with the logits of its likeliest candidates changed, normalised over the whole
vocabulary (`path_corrector.corrected`). All that a loss needs of the vocabulary is log-probabilities of a few tokens
before the correction: of the candidates and of those that the teacher names. Their gradient with respect to the
block's output h is known once the row's softmax q is, and linear in what comes back for each:

    log q_c = W_c h - log sum_v e^(W_v h)        d log q_c / d h = W_c - q @ W

So q @ W, a row of H numbers, is all that the forward pass keeps for the backward one, and where the head is frozen
not even that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from jetspec_sglang.kernels.top_k import top_k

from ..path_corrector import Embed, PathCorrector, corrections, log_mass
from .batch import Batch
from .config import FitConfig
from .loss import taught_entropy
from .student import Student

ROWS = 256  # of which logits are kept at a time


@dataclass(frozen=True)
class CorrectedRows:
    """R rows before their correction, and the correction."""

    ids: Tensor  # [R, C] int64, the candidates
    logprobs: Tensor  # [R, C] float32, theirs
    named: Tensor  # [R, N] float32, log-probabilities of the tokens that a loss names
    changes: Tensor  # [R, C] float32, of the candidates' logits


class CorrectedStudent(Student):
    """A block head with a path corrector; `frozen`: the corrector alone learns."""

    def __init__(self, head: Any, embedding: Tensor, frozen: bool) -> None:
        super().__init__(head, embedding)
        assert isinstance(head.path_corrector, PathCorrector)  # no other kind is trained
        # In a list: it is registered as the head's.
        self.corrector: list[PathCorrector] = [head.path_corrector]
        self.frozen = frozen
        if frozen:
            for name, weight in head.named_parameters():
                weight.requires_grad_(name.startswith("path_corrector."))

    def embed(self, ids: Tensor) -> Tensor:
        return self.embedding[ids]

    def forward(self, batch: Batch, tokens: Tensor, lm_head: Tensor) -> CorrectedRows:  # type: ignore[override]
        """The batch's rows, for a loss that names `tokens` [R, N]; lm_head [V, H]."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            hidden = self.hidden(batch)
        [corrector] = self.corrector
        rows = corrected_rows(corrector, hidden, self.states(batch), lm_head, self.embed, tokens)
        below = batch.depths > corrector.config.skip
        return replace(rows, changes=torch.where(below[:, None], rows.changes, 0))

    def states(self, batch: Batch) -> Tensor:
        """[R, s], of the nodes that the batch's labels are children of, along the text."""
        assert batch.paths is not None  # `collate` makes them for every head with a corrector
        above, found = None, []
        for parents in batch.paths.tokens.T:
            above = self.corrector[0].advance(parents, above, self.embed)
            found.append(above)
        return torch.stack(found, dim=1)[batch.paths.anchors, batch.depths - 1]


def corrected_loss(config: FitConfig, rows: CorrectedRows, tokens: Tensor, shares: Tensor) -> Tensor:
    """Mean over rows of the configured objective; tokens and shares [R, N] as `few_labels` gives them.

    For a KL its teacher's entropy is taken off, as in `loss`.
    """
    found = tokens[:, :, None] == rows.ids[:, None]
    changes = torch.where(found, rows.changes[:, None], 0).sum(-1)
    after = rows.named + changes - log_mass(rows.logprobs, rows.changes)
    return -(shares * after).sum(-1).mean() - taught_entropy(config, shares)


def corrected_rows(
    corrector: PathCorrector, hidden: Tensor, states: Tensor, lm_head: Tensor, embed: Embed, tokens: Tensor
) -> CorrectedRows:
    """hidden [R, H]: the block's outputs; states [R, s] of the nodes above; tokens [R, N] that a loss names.

    lm_head [V, H], frozen. Differentiable in `hidden` and the corrector's weights.
    """
    kept = min(corrector.config.candidates, len(lm_head))
    logprobs, named, ids = _LogProbs.apply(hidden, lm_head, tokens, kept)
    queries = corrector.queries(corrector.of_slots(hidden), states)
    known, where = ids.unique(return_inverse=True)  # a few thousand tokens, in tens of thousands of places
    candidates = F.embedding(where, corrector.candidates(known, embed).float())
    return CorrectedRows(ids, logprobs, named, corrections(queries[:, None], candidates)[:, 0])


class _LogProbs(torch.autograd.Function):
    """Of each row's `kept` likeliest tokens and of the named ones, with the former's ids."""

    @staticmethod
    def forward(ctx, hidden: Tensor, lm_head: Tensor, tokens: Tensor, kept: int):
        rows = hidden.detach().to(lm_head.dtype)
        likeliest, named, ids = [], [], []
        mean = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
        for start in range(0, len(rows), ROWS):
            part = slice(start, start + ROWS)
            logits = rows[part] @ lm_head.T
            values, best = top_k(logits, kept)
            own = logits.gather(1, tokens[part]).float()
            weights = logits.float().sub_(values[:, :1].float()).exp_()
            total = weights.sum(-1, keepdim=True)
            log_total = total.log() + values[:, :1].float()
            likeliest.append(values.float() - log_total)
            named.append(own - log_total)
            ids.append(best)
            if ctx.needs_input_grad[0]:
                mean[part] = (weights.div_(total).to(lm_head.dtype) @ lm_head).float()
        found = torch.cat(ids)
        ctx.save_for_backward(mean, lm_head, torch.cat((found, tokens), 1))
        ctx.dtype = hidden.dtype
        ctx.mark_non_differentiable(found)
        return torch.cat(likeliest), torch.cat(named), found

    @staticmethod
    def backward(ctx, of_likeliest: Tensor, of_named: Tensor, _ids):
        mean, lm_head, ids = ctx.saved_tensors
        upstream = torch.cat((of_likeliest, of_named), 1)
        raised = F.embedding_bag(ids, lm_head, per_sample_weights=upstream.to(lm_head.dtype), mode="sum")
        grad = raised.float() - upstream.sum(-1, keepdim=True) * mean
        return grad.to(ctx.dtype), None, None, None
