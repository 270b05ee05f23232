"""What is timed: it computes what it should, at the sizes that target and heads allow."""

import pytest
import torch

from jetspec_sglang.drafters.quality import cost
from jetspec_sglang.drafters.training.shards import Hidden, Sequence
from jetspec_sglang.drafters.training.target import decoder


@pytest.fixture(scope="module")
def bench(generator, heads):
    return cost.Bench(generator, heads, length=200, cached=130)


def test_a_pass_sees_the_cached_context(bench, plain_model):
    with torch.no_grad():
        found = bench._read(60, 70)
        whole = decoder(plain_model)(input_ids=bench.ids[:, :70]).last_hidden_state
    torch.testing.assert_close(found, whole[:, 60:], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_a_draft_is_what_the_head_drafts(bench, heads):
    """At the length that it was trained for, along its own first choices."""
    for head in heads:
        taps = bench.taps[head.label][0]
        text = Sequence(bench.ids[0, : len(taps)], 1, taps, Hidden(taps))
        found = bench.drafting(head, 40, head.depth)()
        expander = head.expanders(bench.embedding, bench.lm_head, text, torch.tensor([40]))()
        token, rows = bench.ids[:, 40:41], []
        for depth in range(head.depth):
            rows.append(expander(token, torch.zeros_like(token), depth).token_ids[0, 0].tolist())
            token = torch.tensor([[rows[-1][0]]])
        assert found.tolist() == rows
        assert torch.equal(found, bench.drafting(head, 40, head.depth)())


def test_every_case_that_there_are_positions_for(generator, heads):
    """The target has 512 positions, the autoregressive head 32."""
    timed = []

    def time(passes):
        for case, run in passes.items():
            run()
            timed.append(case)
        return {(label, drafted): 1.0 if label == cost.TARGET else 0.5 for label, drafted in passes}

    rows = cost.measure(generator, heads, time)
    assert [(row.head, row.context, row.drafted) for row in rows] == [
        (label, 128, drafted)
        for drafted in cost.DRAFTED
        for label in ("causal", "diffusion", "corrected", "blocks")
    ]
    assert len(timed) == len(rows) + len(cost.DRAFTED)
    assert rows[0].relative == 0.25


def test_a_target_of_few_positions_is_not_timed(generator, heads, monkeypatch):
    monkeypatch.setattr(generator.model.config, "max_position_embeddings", 100)
    assert cost.measure(generator, heads, lambda passes: pytest.fail("timed")) == []
