"""Rejection and traversal on a served model: the law of three sampled tokens is the target's own, with requests of
every rule and greedy ones side by side in the same rounds."""

from collections import Counter
from itertools import product

import builtin_model as builtin
import pytest
import torch
from scipy.stats import chi2
from transformers import AutoModelForCausalLM

from jetspec_sglang.builtin.target import builtin_target

pytestmark = pytest.mark.server

RULES = ("match", "rejection", "traversal")
PER_CALL, CALLS = 30, 10  # requests of each rule in a call
LENGTH = 3  # the first token comes from the prefill, the others from rounds


@pytest.fixture(scope="module")
def jetspec(serve):
    """Traversal is what the server does, the other rules are what requests ask for."""
    flags = (*builtin.jetspec_flags(6, overlap=True), "--jetspec-acceptance", "traversal")
    return serve(*builtin.COMMON, *flags)


class Law:
    """The target's law of the next tokens, from plain transformers."""

    def __init__(self, ids: list[int], top_k: int | None) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(builtin_target(), dtype=torch.float32).eval()
        self.ids, self.top_k = ids, top_k

    def after(self, paths: list[tuple[int, ...]]) -> torch.Tensor:
        """[len(paths), V] probabilities."""
        with torch.inference_mode():
            logits = self.model(torch.tensor([[*self.ids, *path] for path in paths])).logits[:, -1]
        if self.top_k:
            logits = logits.where(logits >= logits.topk(self.top_k)[0][:, -1:], float("-inf"))
        return logits.double().softmax(-1)

    def of_sequences(self, length: int, least: float) -> dict[tuple[int, ...], float]:
        """All sequences of at least that probability."""
        law = {(): 1.0}
        for _ in range(length):
            rows = self.after(list(law))
            longer = {}
            for (path, weight), row in zip(law.items(), rows, strict=True):
                for token in (row * weight >= least).nonzero()[:, 0].tolist():
                    longer[(*path, token)] = weight * float(row[token])
            law = longer
        return law


def wish(rule: str) -> dict:
    return {} if rule == "traversal" else {"custom_params": {"jetspec": {"acceptance": rule}}}


def sample(server, ids: list[int], **params) -> dict[str, Counter]:
    """Sequences by rule, and those of greedy requests beside them."""
    own = {"temperature": 1.0, "max_new_tokens": LENGTH + 1, "ignore_eos": True} | params
    names = ["greedy", *(rule for rule in RULES for _ in range(PER_CALL)), "greedy"]
    rows = [own | ({"temperature": 0} if name == "greedy" else wish(name)) for name in names]
    counts: dict[str, Counter] = {name: Counter() for name in names}
    for _ in range(CALLS):
        answers = server.generate(input_ids=[ids] * len(names), sampling_params=rows)
        for name, answer in zip(names, answers, strict=True):
            counts[name][tuple(answer["output_ids"][:LENGTH])] += 1
    return counts


@pytest.mark.parametrize("top_k", [4, None])
def test_three_sampled_tokens(jetspec, top_k):
    ids = builtin.prompts(2)[1][0]
    samples = PER_CALL * CALLS
    target = Law(ids, top_k)
    law = target.of_sequences(LENGTH, least=3 / samples)
    counts = sample(jetspec, ids, **({"top_k": top_k} if top_k else {}))
    assert len(counts.pop("greedy")) == 1, "greedy requests are not disturbed"
    if top_k:
        paths = {path[:2] for seen in counts.values() for path in seen}
        allowed = dict(zip(paths, target.after(list(paths)), strict=True))
        assert all(allowed[path[:2]][path[2]] > 0 for seen in counts.values() for path in seen)
    expected = [p * samples for p in law.values()] + [samples * (1 - sum(law.values()))]
    assert len(expected) >= 6
    for name, seen in counts.items():
        inside = [seen[path] for path in law]
        observed = [*inside, samples - sum(inside)]
        statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True) if e > 1)
        assert statistic < chi2.ppf(1 - 1e-4, len(observed) - 1), name


def test_sampled_trees_are_accepted_from(jetspec):
    """Rounds commit drafts, and what the trace shows is one path of the tree and its bonus."""
    ids = builtin.prompts(1)[0][0]
    for rule, width in product(("rejection", "traversal"), (1, 4)):
        asked = {"jetspec": {"acceptance": rule, "width": width, "trace": True}}
        params = {"temperature": 1.0, "max_new_tokens": 48, "ignore_eos": True, "custom_params": asked}
        answer = jetspec.generate(input_ids=ids, sampling_params=params)
        state = jetspec.info()["internal_states"][0]["jetspec"]
        rows = [row for row in state["trace"] if row["rid"] == answer["meta_info"]["id"]]
        assert sum(len(row["committed"]) for row in rows) >= 47
        assert max(len(row["committed"]) for row in rows) > 1
        for row in rows:
            drafted = row["path"][1:]
            assert [row["tokens"][slot] for slot in drafted] == row["committed"][:-1]
