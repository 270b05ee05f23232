"""Sampling parameters as SGLang hands them over, and the law that they stand for."""

from types import SimpleNamespace

import torch

VOCAB = 8


def info(temperature=(1.0,), top_k=(1 << 30,), top_p=(1.0,), min_p=(0.0,), **more) -> SimpleNamespace:
    """A stand-in for SGLang's SamplingBatchInfo; a greedy request has temperature 1 and top_k 1, as there."""
    top_ks = torch.tensor(top_k)
    fields = {
        "temperatures": torch.tensor(temperature)[:, None],
        "top_ks": top_ks,
        "top_ps": torch.tensor(top_p),
        "min_ps": torch.tensor(min_p),
        "is_all_greedy": bool((top_ks == 1).all()),
        "is_any_greedy": bool((top_ks == 1).any()),
        "need_top_k_sampling": bool((top_ks < VOCAB).any()),
        "need_top_p_sampling": any(p < 1 for p in top_p),
        "need_min_p_sampling": any(p > 0 for p in min_p),
        "max_top_k": None,
        "sampling_seed": None,
        "acc_additive_penalties": None,
        "acc_scaling_penalties": None,
        "logit_bias": None,
    }
    return SimpleNamespace(**{**fields, **more})


def law(logits: torch.Tensor, temperature=1.0, top_k=VOCAB, top_p=1.0, min_p=0.0) -> torch.Tensor:
    """The textbook distribution: temperature, then top-k, top-p and min-p, renormalised."""
    probs = (logits / temperature).softmax(-1).double()
    order = probs.argsort(descending=True)
    kept = probs[order]
    before = kept.cumsum(0) - kept
    keep = (torch.arange(VOCAB) < top_k) & (before <= top_p) & (kept >= min_p * kept[0])
    result = torch.zeros(VOCAB, dtype=torch.float64)
    result[order[keep]] = kept[keep]
    return result / result.sum()


SETTINGS = [
    {},
    {"temperature": 0.5},
    {"temperature": 2.0, "top_k": 3},
    {"top_p": 0.6},
    {"min_p": 0.3},
    {"temperature": 1.5, "top_k": 5, "top_p": 0.8, "min_p": 0.1},
]
