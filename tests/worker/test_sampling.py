"""The target's choice: greedy and sampled rows side by side, SGLang's parameters, and the law of a round."""

from types import SimpleNamespace

import pytest
import torch
from sampling_cases import SETTINGS, VOCAB, info, law

from jetspec_sglang import row_parts, sampling
from jetspec_sglang.sampling import TargetChoice, accept, apply_logit_rules, path_free_rows
from jetspec_sglang.tree import DraftProposal, build_tree


@pytest.mark.parametrize("rows", [7_000, 20_000], ids=["in parts", "at once"])
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_drawn_tokens_follow_the_filtered_target(setting, rows, monkeypatch):
    monkeypatch.setattr(row_parts, "PART_BYTES", rows * VOCAB * 4)
    torch.manual_seed(0)
    logits = torch.randn(VOCAB) * 1.5
    draws = 20_000
    choice = TargetChoice(
        logits.expand(1, draws, VOCAB),
        torch.zeros(1, draws, dtype=torch.int64),
        info(**{k: (v,) for k, v in setting.items()}),
    )
    drawn = choice(None)[0]
    counts = torch.bincount(drawn, minlength=VOCAB).double()
    expected = law(logits, **setting)
    assert counts[expected == 0].sum() == 0
    live = expected > 0
    chi2 = ((counts - draws * expected)[live] ** 2 / (draws * expected[live])).sum()
    assert chi2 < 30, "p below 1e-4 for at most 7 degrees of freedom"


@pytest.mark.parametrize("rows", [1, 7, 119])
def test_drawn_in_parts_each_row_keeps_its_own_parameters(rows, monkeypatch):
    def sampler(probs, *parameters, max_top_k):
        """Stands in for SGLang's, whose seeded draws need a GPU: everything it is given, row by row."""
        top_ks, top_ps, min_ps, _, seed, positions = parameters
        return probs[:, 0].mul(100) + top_ks + 1e3 * top_ps + 1e4 * min_ps + 1e5 * seed + 1e6 * positions

    monkeypatch.setattr(sampling, "top_k_top_p_min_p_sampling_from_probs_torch", sampler)
    torch.manual_seed(0)
    logits, positions = torch.randn(3, 40, VOCAB), torch.arange(120).view(3, 40)
    seeds = torch.tensor([5, 6, 7])
    asked = info((0.5, 1.0, 2.0), (3, 4, 5), (1.0, 0.6, 0.9), (0.1, 0.0, 0.2), sampling_seed=seeds)
    choice = TargetChoice(logits, positions, asked)
    whole = choice(None)
    assert len(whole.unique()) == 120
    monkeypatch.setattr(row_parts, "PART_BYTES", rows * VOCAB * 4)
    assert torch.equal(choice(None), whole)


def test_greedy_and_sampled_requests_share_a_batch():
    torch.manual_seed(1)
    logits = torch.randn(2, 500, VOCAB)
    choice = TargetChoice(
        logits, torch.zeros(2, 500, dtype=torch.int64), info((1.0, 1.0), (1, 1 << 30), (1.0, 1.0), (0.0, 0.0))
    )
    tokens = choice(None)
    assert torch.equal(tokens[0], logits[0].argmax(-1))
    assert not torch.equal(tokens[1], logits[1].argmax(-1))


def test_a_greedy_request_beside_a_sampled_one_uses_logits_not_rounded_probabilities():
    """Two logits that a softmax rounds to one probability: greedy decoding still tells them apart."""
    logits = torch.full((2, 1, VOCAB), -50.0)
    logits[..., 3] = 0.1
    logits[..., 4] = torch.nextafter(torch.tensor(0.1), torch.tensor(1.0))
    probs = logits.softmax(-1)
    assert torch.equal(probs[..., 3], probs[..., 4])
    parameters = info((1.0, 1.0), (1, 1 << 30), (1.0, 1.0), (0.0, 0.0))
    choice = TargetChoice(logits, torch.zeros(2, 1, dtype=torch.int64), parameters)
    assert choice(None)[0].tolist() == [4]


def test_visited_nodes_see_their_own_logits():
    logits = torch.randn(2, 5, VOCAB)
    choice = TargetChoice(logits, torch.zeros(2, 5, dtype=torch.int64), info(top_k=(1, 1)))
    nodes = torch.tensor([[3], [1]])
    assert choice(nodes).tolist() == [[logits[0, 3].argmax()], [logits[1, 1].argmax()]]


def chain(tokens: list[int]):
    """A tree that is one path of `tokens` below anchor 0."""
    ids = torch.tensor(tokens)[None, :, None]
    return build_tree(
        DraftProposal(ids, torch.full(ids.shape, -0.1)), torch.zeros(1, dtype=torch.int64), len(tokens) + 1
    )


def test_path_free_requests_stop_at_the_root():
    tree = chain([1, 2, 3])
    logits = torch.full((1, 4, VOCAB), -5.0)
    for node, token in enumerate([1, 2, 3, 4]):
        logits[0, node, token] = 5.0
    choice = TargetChoice(logits, torch.zeros(1, 4, dtype=torch.int64), info(top_k=(1,)))
    assert accept(tree, choice, 3, None).tokens.tolist() == [[1, 2, 3, 4]]
    stopped = accept(tree, choice, 3, torch.tensor([True]))
    assert stopped.lengths.tolist() == [1]
    assert stopped.tokens.tolist() == [[1, -1, -1, -1]]
    drawn = TargetChoice(
        logits * 20, torch.zeros(1, 4, dtype=torch.int64), info()
    )  # sampled, all but certain
    assert accept(tree, drawn, 3, None).lengths.tolist() == [4]
    assert accept(tree, drawn, 3, torch.tensor([True])).tokens.tolist() == [[1, -1, -1, -1]]


def test_penalties_and_bias_change_the_choice():
    logits = torch.zeros(1, 2, VOCAB)
    logits[..., 3] = 2.0
    scaled = logits.clone()
    apply_logit_rules(scaled, info(acc_scaling_penalties=torch.full((1, VOCAB), 4.0)))
    assert scaled[0, 0, 3] == 0.5
    bias = torch.zeros(1, VOCAB)
    bias[0, 5] = 9.0
    apply_logit_rules(logits, info(logit_bias=bias, acc_additive_penalties=torch.zeros(1, VOCAB)))
    assert logits.argmax(-1).tolist() == [[5, 5]]


def test_only_path_dependent_parameters_stop_at_the_root():
    def req(**params):
        defaults = {
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "repetition_penalty": 1.0,
            "min_new_tokens": 0,
        }
        return SimpleNamespace(sampling_params=SimpleNamespace(**{**defaults, **params}))

    assert path_free_rows([req(), req()], torch.device("cpu")) is None
    rows = path_free_rows([req(), req(frequency_penalty=0.5), req(min_new_tokens=4)], torch.device("cpu"))
    assert rows.tolist() == [False, True, True]
