"""Corrected rows against the softmax they stand for, and trees grown from them against plain recomputation."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_data import head_config

from jetspec_sglang.drafters.head_config import CorrectorConfig
from jetspec_sglang.drafters.path_corrector import PathCorrector, corrected, corrections, make_corrector
from jetspec_sglang.drafters.path_expander import CorrectedExpander, candidates_needed
from jetspec_sglang.kernels.top_k import top_k_entropy
from jetspec_sglang.tree import DraftProposal, build_tree, build_tree_by_path

VOCAB, HIDDEN, DEPTH, REQUESTS = 96, 32, 4, 2
KINDS = {
    "gru": {"kind": "gru", "state_size": 6},
    "mlp": {"kind": "mlp"},
    "domino": {"kind": "domino", "state_size": 6},
}


def head(kind: str, **changes):
    return head_config(corrector=CorrectorConfig(**{"rank": 5, "candidates": 12, **KINDS[kind], **changes}))


def corrector(kind: str, zero: bool = False, **changes) -> PathCorrector:
    torch.manual_seed(3)
    module = PathCorrector(head(kind, **changes))
    if not zero:
        with torch.no_grad():
            last = module.table if kind == "domino" else module.keys
            last.weight.normal_(std=3.0)
    return module


torch.manual_seed(0)
EMBEDDING = torch.randn(VOCAB, HIDDEN)
HIDDEN_ROWS = torch.randn(REQUESTS, DEPTH, HIDDEN)
LOGITS = 2 * torch.randn(REQUESTS, DEPTH, VOCAB)
ANCHORS = torch.tensor([7, 70])


def embed(ids):
    return EMBEDDING[ids]


def block(kept: int) -> DraftProposal:
    logprobs, ids, entropy = top_k_entropy(LOGITS.flatten(0, 1), kept)
    shape = (REQUESTS, DEPTH)
    return DraftProposal(ids.view(*shape, kept), logprobs.view(*shape, kept), entropy.view(shape))


def expander(module: PathCorrector, width: int) -> CorrectedExpander:
    rows = block(candidates_needed(module, width, VOCAB))
    return CorrectedExpander(module, embed, HIDDEN_ROWS, rows, width)


def row(module: PathCorrector, request: int, path: list[int]) -> torch.Tensor:
    """Log-probabilities [V] after a path of tokens that begins with the anchor, by the formulas, without batches."""
    depth, config = len(path) - 1, module.config
    logits, h = LOGITS[request, depth].clone(), HIDDEN_ROWS[request, depth]
    if depth < config.skip:
        return logits.log_softmax(-1)
    if config.kind == "domino":
        read, known = embed, module.table.weight
    else:
        read, known = lambda ids: module.norm(embed(ids)), module.keys(module.norm(EMBEDDING))
    state = read(torch.tensor(path[-1]))
    if config.kind != "mlp":
        cell = torch.nn.GRU(HIDDEN, config.state_size, bias=False, batch_first=True)
        cell.load_state_dict({"weight_ih_l0": module.inputs.weight, "weight_hh_l0": module.recurrence.weight})
        state = cell(read(torch.tensor(path))[None])[1][0, 0]
    projected = module.project(torch.cat((h, state)))
    if config.kind == "mlp":
        gate, up = projected[: config.rank], projected[config.rank :]
        query = torch.nn.functional.silu(gate) * up
    else:
        query = torch.nn.functional.silu(projected)
    if config.kind != "domino":
        query = query / math.sqrt(config.rank)
    likeliest = logits.topk(config.candidates).indices
    logits[likeliest] += known[likeliest] @ query
    return logits.log_softmax(-1)


def path_of(tree, request: int, slot: int) -> list[int]:
    path = []
    while slot >= 0:
        path.insert(0, int(tree.tokens[request, slot]))
        slot = int(tree.parent[request, slot])
    return path


@given(
    st.lists(st.floats(-40, 40), min_size=1, max_size=9),
    st.integers(0, 3),
    st.floats(0.1, 8),
    st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_corrected_rows_are_the_full_softmax(changes, more, spread, seed):
    """Of logits in which the likeliest tokens' have changed; so is the entropy."""
    rng = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(1, 40, generator=rng)
    count = len(changes)
    logprobs, ids, entropy = top_k_entropy(logits, count + more)
    got, spread_after = corrected(logprobs, torch.tensor([changes]), entropy)
    exact = logits.double().scatter_add(1, ids[:, :count], torch.tensor([changes]).double()).log_softmax(-1)
    mass = math.exp(float(exact.gather(1, ids).logsumexp(-1) - got.logsumexp(-1)))
    grown = float((logprobs[:, :count].double().exp() * torch.tensor([changes]).double().exp()).sum())
    if grown + float(1 - logprobs[:, :count].double().exp().sum()) < 1e-3:
        return  # a row almost all of whose mass is taken away: float32 doesn't know how much is left
    assert mass == pytest.approx(1, abs=2e-3)
    torch.testing.assert_close(got.double(), exact.gather(1, ids), rtol=1e-4, atol=2e-3)
    expected = -(exact.exp() * exact).sum(-1)
    torch.testing.assert_close(spread_after.double(), expected, rtol=2e-3, atol=2e-3)


def test_no_change_changes_nothing():
    rows = block(12)
    after, entropy = corrected(rows.logprobs, torch.zeros(REQUESTS, DEPTH, 8), rows.entropy)
    assert torch.equal(after, rows.logprobs)
    torch.testing.assert_close(entropy, rows.entropy, rtol=1e-5, atol=1e-6)


def test_a_certain_token_is_not_more_than_certain():
    """Trees need it: along a path, probabilities fall."""
    torch.manual_seed(1)
    logprobs = torch.randn(2000, 12).sort(-1, descending=True).values.log_softmax(-1) - 0.01
    after, _ = corrected(logprobs, 30 * torch.randn(2000, 12))
    assert (after.amax(-1) > -1e-6).any()
    assert (after <= 0).all()


def test_wild_changes_stay_numbers():
    logprobs = torch.tensor([[-1e-4, -9.3, -30.0, -math.inf]])
    for queries in (1e9, -1e9):
        changes = corrections(torch.full((1, 1, 1), queries), torch.ones(1, 4, 1))[0]
        after, entropy = corrected(logprobs, changes, torch.tensor([1e-3]))
        assert after[:, :3].isfinite().all()
        assert after[0, 3] == -math.inf
        assert entropy.isfinite().all()


@pytest.mark.parametrize("skip", [0, 1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_every_node_of_a_tree_has_the_probability_of_its_path(kind, skip):
    module, width = corrector(kind, skip=skip), 6
    with torch.no_grad():
        tree = build_tree_by_path(expander(module, width), ANCHORS, 40, width=width, depth=DEPTH)
        for request in range(REQUESTS):
            for slot in range(1, 40):
                path = path_of(tree, request, slot)
                total = sum(float(row(module, request, path[:k])[path[k]]) for k in range(1, len(path)))
                assert float(tree.logprob[request, slot]) == pytest.approx(total, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_trees_are_the_best_of_the_corrected_rows(kind):
    """Against all paths of three depths, whose rows are computed one by one."""
    module, width, depth = corrector(kind), 5, 3
    with torch.no_grad():
        tree = build_tree_by_path(expander(module, width), ANCHORS, 24, width=width, depth=depth)
        for request, anchor in enumerate(ANCHORS.tolist()):
            paths, scores = [([anchor], 0.0)], []
            for _ in range(depth):
                grown = []
                for path, score in paths:
                    values, ids = row(module, request, path).topk(width)
                    grown += [
                        ([*path, t], score + v) for t, v in zip(ids.tolist(), values.tolist(), strict=True)
                    ]
                paths = grown
                scores += [score for _, score in grown]
            best = sorted(scores, reverse=True)[:23]
            assert tree.logprob[request, 1:].tolist() == pytest.approx(best, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [4, 20])
def test_an_untrained_corrector_leaves_the_heads_trees(kind, width):
    module = corrector(kind, zero=True)
    tree = build_tree_by_path(expander(module, width), ANCHORS, 30, width=width, depth=DEPTH)
    plain = build_tree(block(width), ANCHORS, 30)
    for name in ("tokens", "parent", "depth", "logprob"):
        assert torch.equal(getattr(tree, name), getattr(plain, name)), name


@pytest.mark.parametrize("kind", KINDS)
def test_entropy_is_that_of_the_corrected_row(kind):
    module, width = corrector(kind), 3
    rows = expander(module, width)
    with torch.no_grad():
        first = rows(ANCHORS[:, None], torch.zeros(REQUESTS, 1, dtype=torch.int64), 0)
        parents = torch.zeros(REQUESTS, width, dtype=torch.int64)
        second = rows(first.token_ids[:, 0], parents, 1)
        for request in range(REQUESTS):
            for node in range(width):
                path = [int(ANCHORS[request]), int(first.token_ids[request, 0, node])]
                exact = row(module, request, path)
                expected = float(-(exact.exp() * exact).sum())
                assert float(second.entropy[request, node]) == pytest.approx(expected, abs=1e-3)


def test_with_all_candidates_a_treeflash_head_is_its_authors():
    """Their row of a node is lm_head(norm(h + d(silu(g) * u))), over the whole vocabulary."""
    torch.manual_seed(4)
    config = head_config(
        corrector=CorrectorConfig(kind="treeflash", rank=HIDDEN, candidates=VOCAB, skip=0), causal=False
    )
    module, final, lm_head = make_corrector(config), torch.rand(HIDDEN) + 0.5, torch.randn(VOCAB, HIDDEN)
    torch.nn.init.normal_(module.d.weight)
    module.share(final, lambda ids: lm_head[ids])

    def norm(x):
        return torch.nn.functional.rms_norm(x, (HIDDEN,), final, 1e-6)

    logprobs, ids = (norm(HIDDEN_ROWS) @ lm_head.T).log_softmax(-1).sort(-1, descending=True)
    rows = CorrectedExpander(module, embed, HIDDEN_ROWS, DraftProposal(ids, logprobs), VOCAB)
    with torch.no_grad():
        for depth, parents in enumerate((ANCHORS[:, None], torch.tensor([[4, 9, 11], [8, 80, 2]]))):
            got = rows(parents, torch.zeros_like(parents), depth)
            h = HIDDEN_ROWS[:, depth, None].expand(-1, parents.shape[1], -1)
            read = torch.cat((module.norm(embed(parents)), norm(h)), -1)
            u, g = module.ug(read).chunk(2, -1)
            logits = norm(h + module.d(torch.nn.functional.silu(g) * u)) @ lm_head.T
            exact = logits.log_softmax(-1).gather(-1, got.token_ids)
            torch.testing.assert_close(got.logprobs, exact, rtol=1e-4, atol=1e-4)
    assert (got.logprobs.exp().sum(-1) - 1).abs().max() < 1e-4


def test_rows_without_entropy_have_none():
    module = corrector("gru")
    rows = CorrectedExpander(module, embed, HIDDEN_ROWS, replace(block(12), entropy=None), 4)
    answer = rows(ANCHORS[:, None], torch.zeros(REQUESTS, 1, dtype=torch.int64), 0)
    assert answer.entropy is None
    assert answer.token_ids.shape == (REQUESTS, 1, 4)


def test_a_head_without_a_corrector_makes_none():
    with pytest.raises(ValueError, match="no path corrector"):
        make_corrector(head_config())
