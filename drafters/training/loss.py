"""What the head is taught, and the losses against a large frozen lm_head, without ever keeping the logits.

    cross_entropy   -log q[label]
    forward_kl      T^2 KL(p_T || q_T)       p the target's distribution, q the head's, both at temperature T
    reverse_kl      T^2 KL(q_T || p_T)

T^2 keeps the gradient's size. The lm_head (V x H, V >> H) dominates training. Its weight is frozen, so all that
is needed of it is the loss and the loss's gradient with respect to the hidden rows, and both are known as soon
as a row's logits are. The forward pass therefore goes over rows in chunks, computes both, and drops the logits.

There are two ways. `chunked_loss` takes any objective and lets autograd find the gradient of a chunk's logits.
`soft_label_loss` is for labels that are few tokens with probabilities, which cross entropy and the forward KL
from a top-16 distribution are. Per logit it costs one matmul write, one in-place softmax and one matmul read:

    loss = sum_r -sum_c p_rc log q_r[id_rc],  q_r = softmax(W h_r / T)
    d loss / d h_r = (q_r @ W - sum_c p_rc W[id_rc]) / T

An extra elementwise pass over [rows, V] would be as dear as half a matmul, which is why the labels are
subtracted after the second matmul, on H columns instead of V.

With `fit.negatives` this softmax goes over part of the vocabulary (`narrowed`): all tokens that the batch's
teacher or labels name, and that many others drawn anew for each batch. A drawn token stands for several that
were not, so its logit is raised by the logarithm of their number, and the sum of the exponentials is right in
expectation (importance sampling; the tokens that matter, a teacher's, are always there).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .config import FitConfig
from .shards import Hidden, Teacher, TopK

RowLoss = Callable[[Tensor, slice], Tensor]


def objective_loss(
    config: FitConfig,
    hidden: Tensor,
    lm_head: Tensor,
    labels: Tensor,
    teacher: Teacher,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Mean over rows of the configured objective, a float32 scalar, differentiable in ``hidden`` only.

    hidden [R, H]; lm_head [V, H] in the dtype the matmuls shall run in; labels [R] int64; teacher of R rows.
    ``generator``, on the CPU, draws the negatives of a config that has them.
    """
    hard, heat = hard_share(config), config.temperature
    soft = 1 - hard
    vocabulary, tokens = Vocabulary(lm_head), labels[:, None]
    few = hard == 1 or (config.objective == "forward_kl" and isinstance(teacher, TopK))
    if few:
        tokens, shares = few_labels(config, labels, teacher)
        constant = heat**2 * taught_entropy(config, shares)
        if config.negatives is not None:
            vocabulary, tokens = narrowed(lm_head, tokens, config.negatives, generator)
        if heat == 1:  # one pass for both parts
            return soft_label_loss(hidden, vocabulary, tokens, shares) - constant
        top = soft_label_loss(hidden, vocabulary, tokens[:, :-1], shares[:, :-1] / soft, heat) if soft else 0
        loss = soft * heat**2 * top - constant
    else:
        divergence = forward_kl if config.objective == "forward_kl" else reverse_kl

        def row_loss(logits: Tensor, part: slice) -> Tensor:
            log_p = teacher_log_probs(teacher, part, lm_head, heat)
            return divergence(log_p, (logits / heat).log_softmax(-1))

        loss = soft * heat**2 * chunked_loss(hidden, lm_head, row_loss)
    if not hard:
        return loss
    one = torch.ones(len(labels), 1, device=labels.device)
    return loss + hard * soft_label_loss(hidden, vocabulary, tokens[:, -1:], one)


def hard_share(config: FitConfig) -> float:
    """Share of cross entropy."""
    return 1.0 if config.objective == "cross_entropy" else config.hard_weight


def few_labels(config: FitConfig, labels: Tensor, teacher: Teacher) -> tuple[Tensor, Tensor]:
    """What a row is taught, as tokens [R, N] int64 and their shares [R, N] float32, each row's summing to 1.

    The label comes last. The top 16 of a teacher are taken for its whole distribution, at the temperature; the rest
    of its mass is left out. Raises TypeError for a teacher of another form.
    """
    ids, one = labels[:, None], torch.ones(len(labels), 1, device=labels.device)
    hard = hard_share(config)
    if hard == 1:
        return ids, one
    if not isinstance(teacher, TopK):
        raise TypeError("only top-k distributions are few labels")
    soft = (1 - hard) * (teacher.logprobs.float() / config.temperature).softmax(dim=-1)
    return torch.cat((teacher.ids.long(), ids), 1), torch.cat((soft, hard * one), 1)


def taught_entropy(config: FitConfig, shares: Tensor) -> Tensor:
    """Entropy of the teacher's part of `few_labels`' shares, mean over rows: what makes a KL of a cross entropy."""
    soft = shares[:, :-1]  # nothing of it with cross entropy
    return -torch.xlogy(soft, soft / (1 - config.hard_weight)).sum(-1).mean()


@dataclass(frozen=True)
class Vocabulary:
    """What a softmax goes over."""

    lm_head: Tensor  # [C, H]
    shift: Tensor | None = None  # [C], added to logits; None is zeros


def narrowed(
    lm_head: Tensor, named: Tensor, negatives: int, generator: torch.Generator | None
) -> tuple[Vocabulary, Tensor]:
    """The tokens of ``named`` and ``negatives`` others -> the vocabulary of them, and ``named`` as its rows.

    lm_head [V, H]; named, any shape, int64. All of the vocabulary if there are no more others than that.
    """
    kept, rows = named.unique(return_inverse=True)
    others = torch.ones(len(lm_head), dtype=torch.bool, device=named.device)
    others[kept] = False
    order = torch.randperm(len(lm_head), generator=generator).to(named.device)
    drawn = order[others[order]][:negatives]
    shift = torch.zeros(len(kept) + len(drawn), dtype=lm_head.dtype, device=lm_head.device)
    if len(drawn):
        shift[len(kept) :] = math.log((len(lm_head) - len(kept)) / len(drawn))
    return Vocabulary(lm_head[torch.cat((kept, drawn))], shift), rows


def forward_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p || q) of each row, [..., V] -> [...]."""
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def reverse_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(q || p) of each row, [..., V] -> [...]."""
    return (log_q.exp() * (log_q - log_p)).sum(-1)


def teacher_log_probs(teacher: Teacher, part: slice, lm_head: Tensor, temperature: float) -> Tensor:
    """Log-probabilities [r, V] float32 of the teacher's rows in ``part``, at this temperature.

    Of a top-16 distribution, the mass that it doesn't name is spread evenly over all other tokens.
    """
    if isinstance(teacher, Hidden):
        logits = (teacher.states[part].to(lm_head.dtype) @ lm_head.T).float()
        return (logits / temperature).log_softmax(-1)
    top, others = teacher.logprobs[part].float(), len(lm_head) - teacher.ids.shape[1]
    rest = (1 - top.exp().sum(-1, keepdim=True)).clamp_min(1e-6)
    filled = (rest.log() - math.log(others)).expand(-1, len(lm_head)).clone()
    return (filled.scatter_(1, teacher.ids[part].long(), top) / temperature).log_softmax(-1)


def chunked_loss(hidden: Tensor, lm_head: Tensor, row_loss: RowLoss, chunk: int = 128) -> Tensor:
    """Mean of ``row_loss(logits [r, V] float32, part)`` [r] over all rows, any differentiable function."""
    return _ChunkedLoss.apply(hidden, lm_head, row_loss, chunk)


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden: Tensor, lm_head: Tensor, row_loss: RowLoss, chunk: int) -> Tensor:
        grad = torch.empty(hidden.shape, dtype=torch.float32, device=hidden.device)
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        for start in range(0, len(hidden), chunk):
            part = slice(start, min(start + chunk, len(hidden)))
            logits = (hidden[part].detach().to(lm_head.dtype) @ lm_head.T).float()
            with torch.enable_grad():
                loss = row_loss(logits.requires_grad_(), part).sum()
            (by_logits,) = torch.autograd.grad(loss, logits)
            grad[part] = (by_logits.to(lm_head.dtype) @ lm_head).float()
            total += loss.detach()
        ctx.save_for_backward(grad / len(hidden))
        ctx.dtype = hidden.dtype
        return total / len(hidden)

    @staticmethod
    def backward(ctx, upstream: Tensor):
        (grad,) = ctx.saved_tensors
        return (grad * upstream).to(ctx.dtype), None, None, None


def soft_label_loss(
    hidden: Tensor,
    vocabulary: Vocabulary,
    ids: Tensor,
    probs: Tensor,
    temperature: float = 1.0,
    chunk: int = 512,
) -> Tensor:
    """Mean over rows of -sum_c probs[r, c] log q_r[ids[r, c]].

    ids [R, C] int64, rows of the vocabulary's lm_head, with probs [R, C] float32, rows of which sum to 1.
    """
    return _SoftLabelLoss.apply(hidden, vocabulary.lm_head, vocabulary.shift, ids, probs, temperature, chunk)


class _SoftLabelLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx,
        hidden: Tensor,
        lm_head: Tensor,
        shift: Tensor | None,
        ids: Tensor,
        probs: Tensor,
        temperature: float,
        chunk: int,
    ) -> Tensor:
        grad = torch.empty(hidden.shape, dtype=torch.float32, device=hidden.device)
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        rows = (hidden if temperature == 1 else hidden / temperature).to(lm_head.dtype)
        buffer = torch.empty(min(chunk, len(rows)), len(lm_head), dtype=lm_head.dtype, device=hidden.device)
        for start in range(0, len(rows), chunk):
            part = slice(start, min(start + chunk, len(rows)))
            q = buffer[: part.stop - part.start]
            if shift is None:
                torch.mm(rows[part], lm_head.T, out=q)
            else:
                torch.addmm(shift, rows[part], lm_head.T, out=q)
            torch.softmax(q, dim=-1, out=q)
            label_q = q.gather(1, ids[part]).float().clamp_min_(torch.finfo(torch.float32).tiny)
            loss -= (probs[part] * label_q.log_()).sum()
            wanted = F.embedding_bag(
                ids[part], lm_head, per_sample_weights=probs[part].to(lm_head.dtype), mode="sum"
            )
            grad[part] = torch.mm(q, lm_head).float() - wanted.float()
        ctx.save_for_backward(grad / (temperature * len(rows)))
        ctx.dtype = hidden.dtype
        return loss / len(rows)

    @staticmethod
    def backward(ctx, upstream: Tensor):
        (grad,) = ctx.saved_tensors
        return (grad * upstream).to(ctx.dtype), None, None, None, None, None, None
