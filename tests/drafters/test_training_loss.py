"""Objectives against slow and obvious versions: their values, and their gradients through stored logits."""

import pytest
import torch

from jetspec_sglang.drafters.training.config import FitConfig
from jetspec_sglang.drafters.training.loss import (
    Vocabulary,
    chunked_loss,
    forward_kl,
    narrowed,
    objective_loss,
    reverse_kl,
    soft_label_loss,
    teacher_log_probs,
)
from jetspec_sglang.drafters.training.shards import Hidden, TopK

ROWS, HIDDEN, VOCAB = 300, 16, 50  # more rows than a chunk of the slow way


@pytest.fixture
def case():
    rng = torch.Generator().manual_seed(0)
    hidden = torch.randn(ROWS, HIDDEN, generator=rng, requires_grad=True)
    lm_head = torch.randn(VOCAB, HIDDEN, generator=rng)
    labels = torch.randint(0, VOCAB, (ROWS,), generator=rng)
    states = 0.7 * torch.randn(ROWS, HIDDEN, generator=rng)
    return hidden, lm_head, labels, Hidden(states)


def top_k(lm_head: torch.Tensor, teacher: Hidden) -> TopK:
    top = (teacher.states @ lm_head.T).log_softmax(-1).topk(8)
    return TopK(top.indices.int(), top.values.half())


def settings(**changes) -> FitConfig:
    return FitConfig.model_validate({"steps": 1} | changes)


def check(loss: torch.Tensor, reference: torch.Tensor, hidden: torch.Tensor) -> None:
    torch.testing.assert_close(loss, reference)
    (grad,) = torch.autograd.grad(3 * loss, hidden, retain_graph=True)
    (expected,) = torch.autograd.grad(3 * reference, hidden)
    torch.testing.assert_close(grad, expected)


@pytest.mark.parametrize("heat", [1.0, 2.5])
@pytest.mark.parametrize("hard", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("objective", ["forward_kl", "reverse_kl"])
def test_divergences(case, objective, whole, hard, heat):
    hidden, lm_head, labels, states = case
    teacher = states if whole else top_k(lm_head, states)
    config = settings(objective=objective, temperature=heat, hard_weight=hard)
    log_q = (hidden @ lm_head.T / heat).log_softmax(-1)
    if whole:
        p = (states.states @ lm_head.T / heat).softmax(-1)
    elif objective == "forward_kl":  # the top 8 alone, renormalised
        p = torch.zeros(ROWS, VOCAB).scatter_(
            1, teacher.ids.long(), (teacher.logprobs.float() / heat).softmax(-1)
        )
    else:  # the rest of the mass is spread evenly
        known = teacher.logprobs.float().exp()
        rest = (1 - known.sum(-1, keepdim=True)) / (VOCAB - 8)
        p = rest.expand(-1, VOCAB).scatter(1, teacher.ids.long(), known) ** (1 / heat)
        p = p / p.sum(-1, keepdim=True)
    if objective == "forward_kl":
        divergence = (torch.xlogy(p, p) - p * log_q).sum(-1)
    else:
        divergence = (log_q.exp() * (log_q - p.log())).sum(-1)
    cross_entropy = torch.nn.functional.cross_entropy(hidden @ lm_head.T, labels)
    reference = (1 - hard) * heat**2 * divergence.mean() + hard * cross_entropy
    check(objective_loss(config, hidden, lm_head, labels, teacher), reference, hidden)


def test_cross_entropy_is_what_torch_says(case):
    hidden, lm_head, labels, teacher = case
    config = settings(objective="cross_entropy")
    reference = torch.nn.functional.cross_entropy(hidden @ lm_head.T, labels)
    check(objective_loss(config, hidden, lm_head, labels, teacher), reference, hidden)


def test_the_fast_way_equals_any_objective_through_autograd(case):
    hidden, lm_head, labels, _ = case
    ids = torch.stack((labels, (labels + 1) % VOCAB), dim=1)
    probs = torch.tensor([0.8, 0.2]).expand(ROWS, 2)

    def row_loss(logits, part):
        return -(probs[part] * logits.log_softmax(-1).gather(1, ids[part])).sum(-1)

    check(
        soft_label_loss(hidden, Vocabulary(lm_head), ids, probs, chunk=64),
        chunked_loss(hidden, lm_head, row_loss, chunk=7),
        hidden,
    )


def test_divergences_are_zero_only_between_equals(case):
    hidden, lm_head, _, teacher = case
    log_p = teacher_log_probs(teacher, slice(0, ROWS), lm_head, 1.0)
    log_q = (hidden @ lm_head.T).log_softmax(-1).detach()
    for divergence in (forward_kl, reverse_kl):
        assert divergence(log_p, log_p).abs().max() < 1e-6
        assert divergence(log_p, log_q).min() > 0.01


def test_bfloat16_is_close(case):
    """As on a CPU: the lm_head and the logits in bf16."""
    hidden, lm_head, labels, states = case
    teacher = top_k(lm_head, states)
    for config in (settings(hard_weight=0.1), settings(objective="reverse_kl")):
        exact = objective_loss(config, hidden, lm_head, labels, teacher)
        rough = objective_loss(config, hidden, lm_head.bfloat16(), labels, teacher)
        torch.testing.assert_close(rough, exact, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    "changes", [{}, {"hard_weight": 0.3}, {"temperature": 2.0}, {"objective": "cross_entropy"}]
)
def test_as_many_negatives_as_there_are_tokens_is_the_whole_softmax(case, changes):
    hidden, lm_head, labels, states = case
    teacher = top_k(lm_head, states)
    rng = torch.Generator().manual_seed(1)
    part = objective_loss(settings(negatives=VOCAB, **changes), hidden, lm_head, labels, teacher, rng)
    check(part, objective_loss(settings(**changes), hidden, lm_head, labels, teacher), hidden)


def test_drawn_negatives_give_the_right_normaliser_on_average():
    """Of a few rows, whose teachers name a small part of the vocabulary."""
    rng = torch.Generator().manual_seed(0)
    lm_head, hidden = torch.randn(400, 8, generator=rng), torch.randn(4, 8, generator=rng)
    named = torch.randint(0, 400, (4, 3), generator=rng)
    exact = (hidden @ lm_head.T).exp().sum(-1)
    draws = []
    for _ in range(400):
        vocabulary, rows = narrowed(lm_head, named, 60, rng)
        assert torch.equal(vocabulary.lm_head[rows], lm_head[named])
        assert len(vocabulary.lm_head.unique(dim=0)) == len(named.unique()) + 60
        assert vocabulary.shift is not None
        assert not vocabulary.shift[rows].any()
        draws.append((hidden @ vocabulary.lm_head.T + vocabulary.shift).exp().sum(-1))
    mean, spread = torch.stack(draws).mean(0), torch.stack(draws).std(0) / 400**0.5
    assert ((mean - exact).abs() < 4 * spread).all()


def test_negatives_go_with_what_needs_few_tokens():
    with pytest.raises(ValueError, match="a reverse KL needs the whole vocabulary"):
        settings(objective="reverse_kl", negatives=5)
