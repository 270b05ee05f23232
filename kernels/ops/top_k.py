"""Top-k of a wide row, and the log-probabilities of what it finds."""

import torch


def top_k(logits: torch.Tensor, k: int, block: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    """The k largest of each row, largest first: values, indices [R, k].

    logits: [R, V]. Exact: the k largest lie in the k blocks with the largest maxima, so only those are
    searched. On the CPU this is several times faster than one selection over the whole row.
    """
    rows, vocab = logits.shape
    if logits.device.type != "cpu" or vocab % block or vocab // block <= k:
        return logits.topk(k, dim=-1)
    blocks = logits.view(rows, -1, block)
    best = blocks.amax(-1).topk(k, dim=-1).indices
    inside = blocks.gather(1, best[..., None].expand(-1, -1, block)).view(rows, -1)
    values, where = inside.topk(k, dim=-1)
    return values, best.gather(1, where // block) * block + where % block


def top_k_logprobs(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities (fp32, normalised over the full row, as half precision would invent ties) and indices
    [R, k] of the k likeliest entries of `logits` [R, V]."""
    values, indices = top_k(logits, k)
    values = values.float()
    highest = values[:, :1]
    total = (logits.float() - highest).exp_().sum(-1, keepdim=True)
    return values - highest - total.log_(), indices


def top_k_entropy(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What `top_k_logprobs` gives, bit for bit, and the entropy [R] of the full row: fp32, nats.

    With z the logits relative to their largest and Z the sum of e^z, H = log Z - sum(z e^z) / Z: the softmax
    itself is never needed. An entry of -inf adds nothing.
    """
    values, indices = top_k(logits, k)
    values = values.float()
    highest = values[:, :1]
    relative = logits.float() - highest
    weights = relative.exp()
    total = weights.sum(-1, keepdim=True)
    # 0 * -inf would be NaN; clamped, it is 0.
    weighted = weights.mul_(relative.clamp_(min=torch.finfo(torch.float32).min)).sum(-1, keepdim=True)
    log_total = total.log()
    return values - highest - log_total, indices, (log_total - weighted / total)[:, 0]
