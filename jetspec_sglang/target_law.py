"""The target's law at tree nodes, all of it: what rejection and traversal need in place of one drawn token.

It comes from SGLang's own sampler function, so that temperature, top-k, top-p and min-p mean exactly what they
mean without JETSPEC.
"""

from typing import Any

import torch
from sglang.srt.layers.sampler import top_k_top_p_min_p_sampling_from_probs_torch

from .row_parts import in_parts
from .tree import TargetLaw

HEAD = 256  # sorting a vocabulary takes longer on a CPU than the target's forward


def target_law(logits: torch.Tensor, info: Any) -> TargetLaw:
    """The law after each node, as `tree.missing_law` asks for it: fp32, what top-k and so on cut off not made up for.

    logits: [B, N, V] fp32, logit rules applied; info: SGLang's SamplingBatchInfo of these requests, which sample.
    """

    def rows(nodes: torch.Tensor | None) -> torch.Tensor:
        asked = logits
        if nodes is not None:
            asked = logits[torch.arange(len(nodes), device=nodes.device)[:, None], nodes]
        temperatures, top_ks, top_ps, min_ps = (
            parameter.repeat_interleave(asked.shape[1], 0)  # for each row
            for parameter in (info.temperatures, info.top_ks, info.top_ps, info.min_ps)
        )
        flat = asked.flatten(0, 1)

        def law(part: slice) -> torch.Tensor:
            probs = (flat[part] / temperatures[part]).softmax(-1)
            if not (info.need_top_k_sampling or info.need_top_p_sampling or info.need_min_p_sampling):
                return probs
            return _filtered(probs, top_ks[part], top_ps[part], min_ps[part], info)

        return in_parts(law, *flat.shape).view(asked.shape)

    return rows


def _filtered(
    probs: torch.Tensor, top_ks: torch.Tensor, top_ps: torch.Tensor, min_ps: torch.Tensor, info: Any
) -> torch.Tensor:
    """[R, V]: what top-k, top-p and min-p, one each a row, leave of it."""
    columns = _columns(probs, top_ps, info)
    weights, tokens = probs.topk(columns) if columns < probs.shape[1] else probs.sort(descending=True)
    _, kept, order, _ = top_k_top_p_min_p_sampling_from_probs_torch(
        weights,
        top_ks,
        top_ps,
        min_ps,
        info.need_min_p_sampling,
        None,
        torch.zeros_like(top_ks),
        return_filtered_probs=True,
    )
    return torch.zeros_like(probs).scatter_(1, tokens.gather(1, order.to(torch.int64)), kept)


def _columns(probs: torch.Tensor, top_ps: torch.Tensor, info: Any) -> int:
    """How many of the most probable tokens are enough: those behind them are cut off in every row."""
    vocab = probs.shape[1]
    columns = vocab if info.max_top_k is None else min(info.max_top_k, vocab)
    # The host may look at values here only where that costs nothing.
    if columns > HEAD and probs.device.type == "cpu" and (probs.topk(HEAD)[0].sum(1) > top_ps + 1e-6).all():
        return HEAD
    return columns
