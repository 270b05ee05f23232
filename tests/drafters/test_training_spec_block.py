"""Training of spec-block heads: rows, ranks and valid prefixes against slow and obvious versions."""

import pytest
import torch
from pydantic import ValidationError
from test_training_fit import head as head_settings
from test_training_fit import settings
from test_training_parts import cuts_of, embedding_of
from tiny_data import VOCAB, head_config, spec_block_config

from jetspec_sglang.drafters.causal_head import CausalParallelHead, block_mask
from jetspec_sglang.drafters.checkpoint import load_head_tensors, read_head_config, write_head
from jetspec_sglang.drafters.spec_block_head import SpecBlockHead
from jetspec_sglang.drafters.training import fit, metrics, state
from jetspec_sglang.drafters.training.batch import collate
from jetspec_sglang.drafters.training.config import FitConfig
from jetspec_sglang.drafters.training.errors import TrainError
from jetspec_sglang.drafters.training.evaluate import draft
from jetspec_sglang.drafters.training.export import export
from jetspec_sglang.drafters.training.loss import objective_loss
from jetspec_sglang.drafters.training.shards import Shard
from jetspec_sglang.drafters.training.spec_block import (
    RANK_SHARE,
    ROWS,
    SpecBlockStudent,
    label_ranks,
    spec_block_loss,
    valid_prefix,
)
from jetspec_sglang.drafters.training.student import make_head, warm_start


@pytest.fixture
def sequences(data_folder):
    shard = Shard(data_folder / "shard-00000.safetensors")
    return [shard.read(i) for i in range(3)]


def random_head(**changes) -> SpecBlockHead:
    torch.manual_seed(0)
    return SpecBlockHead(spec_block_config(**{"block_size": 8} | changes)).requires_grad_(False)


def block_by_block(head, embedding, sequence, anchor, advances) -> torch.Tensor:
    """Rows [7, H] along the text, each block going on from that position of the one before."""
    context = head.context_kv(sequence.taps[None, :anchor].float(), torch.arange(anchor)[None])
    seen, mask = torch.ones(1, 1, anchor, dtype=torch.bool), embedding[head.config.mask_token_id]
    padded = torch.nn.functional.pad(sequence.tokens, (0, 8 * head.config.positions))
    at, state, rows = anchor, torch.zeros(1, 1, head.config.hidden_size), []
    for advance in advances.tolist():
        block = head(embedding[padded[at]][None, None], mask, torch.tensor([[at]]), context, seen, state)
        rows.append(block[0, 0, :advance])
        at, state = at + advance, block[:, :, advance - 1]
    return head.norm(torch.cat(rows)[:7])


@pytest.mark.parametrize("positions", [1, 2, 3, 7])
@pytest.mark.parametrize("seed", [None, 0, 1])
def test_batched_rows_are_those_of_the_anchor_alone(sequences, positions, seed):
    """Whatever other anchors go on below theirs, in however many forwards, and from whichever positions."""
    head = random_head(positions=positions)
    embedding, cuts = embedding_of(head.config), cuts_of(sequences, head.config)
    cuts[1] = [(anchor, 1) for anchor, _ in cuts[1]]  # a text whose blocks all end early
    draws = None if seed is None else torch.Generator().manual_seed(seed)
    batch = collate(sequences, cuts, head.config, draws)
    rows, offsets = SpecBlockStudent(head, embedding)(batch)
    shape = 7, len(cuts), max(map(len, cuts))
    advances = torch.full(shape, positions)
    if seed is not None:
        draws = torch.Generator().manual_seed(seed)
        advances = torch.stack(
            [torch.randint(1, positions + 1, shape[1:], generator=draws) for _ in range(7)]
        )
    alone = []
    for row, (sequence, each) in enumerate(zip(sequences, cuts, strict=True)):
        for column, (anchor, depths) in enumerate(each):
            alone.append(block_by_block(head, embedding, sequence, anchor, advances[:, row, column])[:depths])
    if seed is not None and positions > 1:
        assert len({tuple(each) for each in advances[:, 0].T.tolist()}) > 1
    torch.testing.assert_close(rows, torch.cat(alone), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(offsets, rows @ head.rank_head.weight.T, rtol=1e-4, atol=1e-5)
    wanted = [
        s.tokens[a + k]
        for s, each in zip(sequences, cuts, strict=True)
        for a, d in each
        for k in range(1, d + 1)
    ]
    assert batch.labels.tolist() == [int(token) for token in wanted]
    fewest = -(-max(d for each in cuts for _, d in each) // positions)
    assert len(batch.forwards) == fewest or (seed is not None and len(batch.forwards) > fewest)


def test_ranks_are_places_in_the_sorted_row():
    rng = torch.Generator().manual_seed(0)
    hidden, lm_head = torch.randn(2 * ROWS + 5, 16, generator=rng), torch.randn(VOCAB, 16, generator=rng)
    labels = torch.randint(VOCAB, (len(hidden),), generator=rng)
    order = (hidden @ lm_head.T).argsort(dim=-1, descending=True)
    wanted = [row.tolist().index(label) for row, label in zip(order, labels.tolist(), strict=True)]
    found, said = label_ranks(hidden, lm_head, labels, 5)
    assert found.tolist() == wanted
    q = (hidden @ lm_head.T).softmax(-1).sort(dim=-1, descending=True).values
    torch.testing.assert_close(said.exp(), torch.cat((q[:, :5], q[:, 5:].sum(-1, keepdim=True)), dim=-1))


def test_a_prefix_is_valid_up_to_its_first_wrong_row_and_that_row_too():
    rng = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 8, (60,), generator=rng).tolist()
    depths = torch.tensor([k for length in lengths for k in range(1, length + 1)])
    right = torch.rand(len(depths), generator=rng) < 0.7
    wanted, at = [], 0
    for length in lengths:
        wanted += [all(right[at : at + k].tolist()) for k in range(length)]
        at += length
    assert valid_prefix(right, depths).tolist() == wanted


@pytest.mark.parametrize("allowed", [None, 0, 1])
def test_the_loss_is_that_of_rows_behind_valid_prefixes(sequences, allowed):
    head = random_head()
    for weight in head.parameters():
        weight.requires_grad_(True)
    config = FitConfig.model_validate({"steps": 1, "hard_weight": 0.1, "valid_prefix": allowed})
    embedding, lm_head = embedding_of(head.config), 0.3 * embedding_of(head.config).roll(1, 0)
    batch = collate(sequences, cuts_of(sequences, head.config, gamma=0.0), head.config)
    hidden, offsets = SpecBlockStudent(head, embedding)(batch)
    found, part = spec_block_loss(config, head.config, batch, hidden, offsets, lm_head, torch.Generator())

    kept, right, ranks = [], True, (hidden @ lm_head.T).argsort(dim=-1, descending=True)
    for row, (label, depth) in enumerate(zip(batch.labels.tolist(), batch.depths.tolist(), strict=True)):
        right = right or depth == 1
        if right:
            kept.append(row)
        right = right and ranks[row].tolist().index(label) < {None: 3, 0: VOCAB, 1: 1}[allowed]
    rows = torch.tensor(kept)
    places = [min(ranks[row].tolist().index(int(batch.labels[row])), 3) for row in kept]
    q = (hidden[rows].detach() @ lm_head.T).softmax(-1).sort(dim=-1, descending=True).values
    odds = torch.cat((q[:, :3], q[:, 3:].sum(-1, keepdim=True)), dim=-1) * offsets[rows].exp()
    chances = odds / odds.sum(-1, keepdim=True)
    rank_loss = -chances[torch.arange(len(rows)), torch.tensor(places)].log().mean()
    plain = objective_loss(config, hidden[rows], lm_head, batch.labels[rows], batch.teacher.at(rows))
    torch.testing.assert_close(found, plain + RANK_SHARE * rank_loss)
    torch.testing.assert_close(part, rank_loss.detach())
    wanted = torch.autograd.grad(RANK_SHARE * rank_loss, head.rank_head.weight, retain_graph=True)
    learned = torch.autograd.grad(found, head.rank_head.weight, retain_graph=True)
    torch.testing.assert_close(learned, wanted)
    assert (len(kept) == len(hidden)) == (allowed == 0)
    # The rank head's part moves nothing but the rank head.
    trunk = [weight for name, weight in head.named_parameters() if name != "rank_head.weight"]
    grads = torch.autograd.grad(found, trunk, retain_graph=True)
    for one, other in zip(grads, torch.autograd.grad(plain, trunk), strict=True):
        torch.testing.assert_close(one, other)


def test_a_start_from_a_causal_head_is_that_head_in_blocks(sequences, tmp_path):
    causal = CausalParallelHead(head_config(block_size=5)).requires_grad_(False)
    write_head(tmp_path, causal.config, causal.state_dict(), "A head.")
    causal.load_state_dict({name: each.bfloat16().float() for name, each in causal.state_dict().items()})
    head = make_head(spec_block_config(block_size=7, positions=4)).requires_grad_(False)
    warm_start(head, head.config, str(tmp_path))
    assert not head.rank_head.weight.any()
    embedding, sequence = embedding_of(head.config), sequences[0]
    mask, taps = embedding[head.config.mask_token_id], sequence.taps[None].float()
    anchor = sequence.prompt_len + 2
    rows = head.unroll(taps, embedding[sequence.tokens][None], mask, torch.tensor([[anchor]]), 6)[0, 0]
    for start, context in ((anchor, anchor), (anchor + 4, anchor)):
        slots = torch.cat((embedding[sequence.tokens[start]][None], mask.expand(4, -1)))[None]
        kv = causal.context_kv(taps[:, :context], torch.arange(context)[None])
        at = start + torch.arange(5)[None]
        wanted = causal.block_residual(slots, at, kv, block_mask(context, 5, causal=True))[0, 1:]
        found = rows[start - anchor :][:4]
        torch.testing.assert_close(found, wanted[: len(found)], rtol=1e-4, atol=1e-5)


def test_a_start_needs_a_head_of_the_same_shape(tmp_path):
    head = make_head(spec_block_config())
    for other, said in (
        (make_head(spec_block_config(ranks=5)), "ranks 5 instead of 3"),
        (make_head(head_config(layers=3)), "layers 3 instead of 2"),
    ):
        write_head(tmp_path, other.config, other.state_dict(), "A head.")
        with pytest.raises(TrainError, match=said):
            warm_start(head, head.config, str(tmp_path))


def test_a_tree_goes_on_below_its_own_path(sequences):
    """The first child everywhere: a chain, whose tokens are those of forwards along the chain itself."""
    head = random_head(positions=2)
    torch.nn.init.zeros_(head.rank_head.weight)
    embedding, sequence = embedding_of(head.config), sequences[0]
    anchors = torch.tensor(list(sequence.anchors()))[:4]
    best, tree = draft(head, embedding, embedding, sequence, anchors)
    assert best.shape == (4, 7)
    for row, anchor in enumerate(anchors.tolist()):
        node, path = 0, []
        while below := [i for i in range(tree.budget) if tree.parent[row, i] == node and i > node]:
            node = below[0]
            path.append(int(tree.tokens[row, node]))
        assert path
        tokens = torch.cat((sequence.tokens[: anchor + 1], torch.tensor(path)))
        taps = torch.zeros(1, len(tokens), head.config.tap_width)
        taps[0, :anchor] = sequence.taps[:anchor].float()
        mask = embedding[head.config.mask_token_id]
        out = head.unroll(taps, embedding[tokens][None], mask, torch.tensor([[anchor]]), len(path))
        likeliest = (head.norm(out[0, 0]) @ embedding.T).topk(3).indices
        assert all(token in each for token, each in zip(path, likeliest.tolist(), strict=True))


def test_export_reads_back_with_equal_rows(target_folder, data_folder, tmp_path, sequences, monkeypatch):
    monkeypatch.setattr(fit, "LOG_STEPS", 2)
    config = settings(
        data_folder, tmp_path, head=head_settings("spec_block"), learning_rate=1e-2, accumulation=2
    )
    fit.run(config, target_folder)
    steps = [record for record in metrics.read(config.run_folder) if "loss" in record]
    assert len(steps) == 3
    assert all(0 < RANK_SHARE * record["rank_loss"] < record["loss"] for record in steps)
    place = export(config)
    saved = state.load(config.run_folder)
    shape = read_head_config(place)
    assert shape.model_dump() == saved["head_config"]
    heads = [make_head(shape).requires_grad_(False) for _ in range(2)]
    heads[0].load_state_dict({name: each.float() for name, each in load_head_tensors(place).items()})
    heads[1].load_state_dict({name: each.bfloat16().float() for name, each in saved["ema"].items()})
    assert all(shift.proj.weight.any() for shift in heads[0].shifts)
    assert heads[0].rank_head.weight.any()
    embedding = embedding_of(shape)
    batch = collate(sequences, cuts_of(sequences, shape), shape)
    for one, other in zip(*(SpecBlockStudent(head, embedding)(batch) for head in heads), strict=True):
        assert torch.equal(one, other)
    card = (place / "README.md").read_text()
    assert "SpecBlock draft head, trained to a depth of 4" in card
    assert "a token and 2 mask tokens" in card


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"positions": None}, "drafts in blocks: set `positions` and `ranks`"),
        ({"ranks": None}, "drafts in blocks: set `positions` and `ranks`"),
        ({"mask_token_id": None}, "a spec_block head drafts from masks: set `mask_token_id`"),
        ({"drafter": "causal_parallel"}, "only spec_block heads have positions and ranks: drop it"),
        ({"drafter": "diffusion", "ranks": None}, "only spec_block heads have positions: drop it"),
        ({"corrector": {"kind": "mlp", "rank": 4, "candidates": 4}}, "drafter spec_block knows its path"),
    ],
    ids=str,
)
def test_shapes_that_cannot_be_are_refused(data_folder, tmp_path, changes, said):
    with pytest.raises(ValidationError, match=said):
        settings(data_folder, tmp_path, head=head_settings("spec_block") | changes)


def test_settings_of_other_heads_are_refused(data_folder, target_folder, tmp_path):
    with pytest.raises(ValidationError, match=r"fit\.valid_prefix is for spec_block heads: leave it out"):
        settings(data_folder, tmp_path, valid_prefix=1)
    with pytest.raises(TrainError, match="positions is 5, but the head is 4 depths deep"):
        fit.Run(
            settings(data_folder, tmp_path, head=head_settings("spec_block") | {"positions": 5}),
            target_folder,
        )
