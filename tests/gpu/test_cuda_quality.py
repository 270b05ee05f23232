"""Needs CUDA: `jetspec quality` says of a tiny model what it says on the CPU."""

import pytest
import tiny
import torch

from jetspec_sglang.drafters.quality import cost
from jetspec_sglang.drafters.quality.answers import greedy_answers
from jetspec_sglang.drafters.quality.heads import load_head
from jetspec_sglang.drafters.quality.rounds import Analysis
from jetspec_sglang.drafters.training.generate import TransformersGenerator

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
TAPS = (0, 1, 2)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Answers, rounds and cost on both devices."""
    root = tmp_path_factory.mktemp("tiny")
    target = tiny.tiny_target(root / "target", layers=4)
    folders = {
        "causal": tiny.tiny_head(root / "causal", target_layers=4),
        "eagle": tiny.tiny_eagle_head(root / "eagle"),
    }
    found = {}
    for device in ("cpu", "cuda"):
        heads = [load_head(label, folder, 4, torch.float32, device) for label, folder in folders.items()]
        generator = TransformersGenerator(target, TAPS, torch.float32, device)
        answers = greedy_answers(generator, [[17, 5, 9], [200, 201, 202, 203]], 12, {tiny.VOCAB})
        analysis = Analysis(generator.model, TAPS, heads, str, 16)
        rounds = [
            each for number, answer in enumerate(answers) for each in analysis.rounds(number, answer, 2)
        ]
        found[device] = answers, rounds, cost.measure(generator, heads, _run)
    return found


def _run(passes):
    for run in passes.values():
        run()
    return dict.fromkeys(passes, 1.0)


def test_answers_and_rounds_match_the_cpu(measured):
    (theirs, there, cost_there), (ours, here, cost_here) = measured["cuda"], measured["cpu"]
    assert [answer.tokens.tolist() for answer in theirs] == [answer.tokens.tolist() for answer in ours]
    assert cost_there == cost_here != []
    for one, other in zip(there, here, strict=True):
        for label, draft in one.drafts.items():
            expected = other.drafts[label]
            assert draft.tree_accepted == expected.tree_accepted
            for mine, its in zip(draft.branches, expected.branches, strict=True):
                assert mine.tokens == its.tokens
                assert mine.draft == pytest.approx(its.draft, abs=1e-2)
                assert mine.target == pytest.approx(its.target, abs=1e-2)
