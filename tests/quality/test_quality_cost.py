"""What is timed: it computes what it should, at the sizes that target and heads allow."""

import pytest
import torch

from jetspec_sglang.drafters.quality import cost
from jetspec_sglang.drafters.training.evaluate import draft_blocks
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
    for head in heads:
        taps = bench.taps[head.label][0]
        text = Sequence(bench.ids[0, : len(taps)], 1, taps, Hidden(taps))
        found = bench.drafting(head, 40, head.depth)()
        assert found.shape == (head.depth, 16)
        if head.label == "eagle":
            expander = head.expanders(bench.embedding, bench.lm_head, text, torch.tensor([40]))()
            first = expander(bench.ids[:, 40:41], torch.zeros(1, 1, dtype=torch.int64), 0)
            assert found[0].tolist() == first.token_ids[0, 0].tolist()
        else:
            ids, _ = draft_blocks(head.model, bench.embedding, bench.lm_head, text, torch.tensor([40]), 16)
            assert found.tolist() == ids[0].tolist()
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
        (label, 128, drafted) for drafted in cost.DRAFTED for label in ("causal", "diffusion")
    ]
    assert len(timed) == len(rows) + len(cost.DRAFTED)
    assert rows[0].relative == 0.25


def test_a_target_of_few_positions_is_not_timed(generator, heads, monkeypatch):
    monkeypatch.setattr(generator.model.config, "max_position_embeddings", 100)
    assert cost.measure(generator, heads, lambda passes: pytest.fail("timed")) == []
