"""Temperature > 0: the served distribution of the first two tokens is the target's own.

Also where drafts come from what other requests have been answered to the same question, which is what a drafter could
bias most.
"""

from collections import Counter

import builtin_model as builtin
import pytest
import torch
from scipy.stats import chi2
from transformers import AutoModelForCausalLM

from jetspec_sglang.builtin.head import builtin_head
from jetspec_sglang.builtin.target import builtin_target

pytestmark = pytest.mark.server

TEMPERATURE, TOP_K = 1.0, 4
SAMPLES = 600


# By what they draft from: rows by path and texts together, blocks; then texts alone, another layer, and shared rows,
# which are in test_acceptance_law.py too.
DRAFTERS = (
    "gru and grafts",
    "spec_block",
    pytest.param("suffix", marks=pytest.mark.matrix),
    pytest.param("autoregressive", marks=pytest.mark.matrix),
    pytest.param("causal", marks=pytest.mark.matrix),
)


@pytest.fixture(scope="module", params=DRAFTERS)
def jetspec(request, serve):
    head, _, grafts = request.param.partition(" and ")
    flags = builtin.suffix_flags(16)
    if head != "suffix":
        flags = builtin.jetspec_flags(16, overlap=True, head=builtin_head(head))
    server = serve(*builtin.COMMON, *flags, *(("--jetspec-graft", "suffix") if grafts else ()))
    yield server
    server.stop()


def filtered(logits: torch.Tensor) -> dict[int, float]:
    values, tokens = logits.topk(TOP_K)
    return dict(zip(tokens.tolist(), (values / TEMPERATURE).softmax(-1).tolist(), strict=True))


def law_of_two(ids: list[int]) -> dict[tuple[int, int], float]:
    """The target's law of two tokens after `ids`, from plain transformers."""
    model = AutoModelForCausalLM.from_pretrained(builtin_target(), dtype=torch.float32).eval()
    with torch.inference_mode():
        first = filtered(model(torch.tensor([ids])).logits[0, -1])
        second = model(torch.tensor([[*ids, token] for token in first])).logits[:, -1]
    return {
        (a, b): p * q
        for (a, p), row in zip(first.items(), second, strict=True)
        for b, q in filtered(row).items()
    }


def test_the_first_two_sampled_tokens(jetspec):
    """Token one comes from the prefill's sampler, token two from a round: root choice and first draft."""
    ids = builtin.prompts(1)[0][0]
    law = law_of_two(ids)
    params = {"temperature": TEMPERATURE, "top_k": TOP_K, "max_new_tokens": 3, "ignore_eos": True}
    counts: Counter = Counter()
    for _ in range(SAMPLES // 60):
        answers = jetspec.generate(input_ids=[ids] * 60, sampling_params=params)
        counts.update(tuple(answer["output_ids"][:2]) for answer in answers)
    assert set(counts) <= set(law), "nothing outside top-k"
    common = {pair: p for pair, p in law.items() if p * SAMPLES >= 5}
    observed = [counts[pair] for pair in common] + [
        sum(n for pair, n in counts.items() if pair not in common)
    ]
    expected = [p * SAMPLES for p in common.values()] + [SAMPLES * (1 - sum(common.values()))]
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True) if e > 1)
    assert statistic < chi2.ppf(1 - 1e-4, len(observed) - 1)


def test_greedy_and_sampled_requests_side_by_side(jetspec):
    """A greedy request is not disturbed by sampled neighbours, which differ among themselves."""
    ids = builtin.prompts(1)[0][0]
    alone = builtin.ask(jetspec, (ids, 20))["output_ids"]
    rows = [{"temperature": t, "max_new_tokens": 20, "ignore_eos": True} for t in (0, 0.7, 0, 1.5)]
    together = jetspec.generate(input_ids=[ids] * 4, sampling_params=rows)
    texts = [answer["output_ids"] for answer in together]
    assert texts[0] == texts[2] == alone
    assert texts[1] != texts[3]
