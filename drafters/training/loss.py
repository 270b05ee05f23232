"""Soft-label cross entropy against a large frozen lm_head, without ever keeping the logits.

The lm_head (V x H, V >> H) dominates training. Its weight is frozen, so all that is needed of it is the
loss and the loss's gradient with respect to the hidden rows, and both are known as soon as a row's logits
are:

    loss = sum_r w_r * -sum_c p_rc log q_r[id_rc],  q_r = softmax(W h_r)
    d loss / d h_r = w_r * (q_r @ W - sum_c p_rc W[id_rc])

The forward pass therefore goes over rows in chunks, computes both, and drops the logits. Per logit it costs
one matmul write, one in-place softmax and one matmul read: an extra elementwise pass over [rows, V] would
be as dear as half a matmul, which is why the labels are subtracted after the second matmul, on H columns
instead of V.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


class _SoftLabelLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, hidden: Tensor, lm_head: Tensor, ids: Tensor, probs: Tensor, weights: Tensor, chunk: int
    ) -> Tensor:
        grad = torch.empty(hidden.shape, dtype=torch.float32, device=hidden.device)
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        rows = hidden.to(lm_head.dtype)
        buffer = torch.empty(min(chunk, len(rows)), len(lm_head), dtype=lm_head.dtype, device=hidden.device)
        for start in range(0, len(rows), chunk):
            part = slice(start, min(start + chunk, len(rows)))
            q = torch.mm(rows[part], lm_head.T, out=buffer[: part.stop - part.start])
            torch.softmax(q, dim=-1, out=q)
            label_q = q.gather(1, ids[part]).float().clamp_min_(torch.finfo(torch.float32).tiny)
            loss -= (weights[part, None] * probs[part] * label_q.log_()).sum()
            wanted = F.embedding_bag(
                ids[part], lm_head, per_sample_weights=probs[part].to(lm_head.dtype), mode="sum"
            )
            grad[part] = (torch.mm(q, lm_head).float() - wanted.float()) * weights[part, None]
        ctx.save_for_backward(grad)
        ctx.dtype = hidden.dtype
        return loss

    @staticmethod
    def backward(ctx, upstream: Tensor):
        (grad,) = ctx.saved_tensors
        return (grad * upstream).to(ctx.dtype), None, None, None, None, None


def soft_label_loss(
    hidden: Tensor, lm_head: Tensor, ids: Tensor, probs: Tensor, weights: Tensor, chunk: int = 512
) -> Tensor:
    """Weighted sum of cross entropies, a float32 scalar, differentiable in ``hidden`` only.

    hidden [R, H]; lm_head [V, H] in the dtype the matmuls shall run in; ids [R, C] int64 with probs [R, C]
    float32, rows of which sum to 1; weights [R] float32 (normalise them yourself).
    """
    return _SoftLabelLoss.apply(hidden, lm_head, ids, probs, weights, chunk)


def soft_targets(
    topk_ids: Tensor, topk_logprobs: Tensor, labels: Tensor, hard_weight: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Teacher and true token as one distribution: ids [R, K+1] int64, probs [R, K+1] float32, entropy [R]
    float32.

    The teacher's top-K probabilities are renormalised to ``1 - hard_weight``; ``labels`` [R] gets
    ``hard_weight``. Cross entropy with the mixture is the mixture of forward KL and hard cross entropy, up
    to the constant ``entropy`` (of the truncated teacher, times its share), which is the least value the
    soft part can reach.
    """
    teacher = topk_logprobs.float().softmax(dim=-1)
    entropy = -(1 - hard_weight) * torch.xlogy(teacher, teacher).sum(-1)
    probs = torch.cat((teacher * (1 - hard_weight), torch.full_like(teacher[:, :1], hard_weight)), dim=1)
    return torch.cat((topk_ids.long(), labels.long()[:, None]), dim=1), probs, entropy
