"""Training of path correctors: the loss against autograd over the whole vocabulary, and whole runs on a tiny target."""

import pytest
import torch
from pydantic import ValidationError
from test_training_fit import head as head_settings
from test_training_fit import interrupted_after, settings
from tiny_data import VOCAB, head_config, write_shard

from jetspec_sglang.drafters.causal_head import CausalParallelHead
from jetspec_sglang.drafters.checkpoint import load_head_tensors, read_head_config
from jetspec_sglang.drafters.head_config import CorrectorConfig
from jetspec_sglang.drafters.path_corrector import corrections
from jetspec_sglang.drafters.training import fit, state
from jetspec_sglang.drafters.training.batch import collate
from jetspec_sglang.drafters.training.config import FitConfig
from jetspec_sglang.drafters.training.corrected import (
    CorrectedStudent,
    corrected_loss,
    corrected_rows,
)
from jetspec_sglang.drafters.training.errors import TrainError
from jetspec_sglang.drafters.training.export import export
from jetspec_sglang.drafters.training.loss import few_labels
from jetspec_sglang.drafters.training.shards import Folder, TopK

KINDS = {"gru": {"kind": "gru", "state_size": 16}, "mlp": {"kind": "mlp"}}


def corrector(kind: str, **changes) -> dict:
    return KINDS[kind] | {"rank": 16, "candidates": 12} | changes


def corrected_head(kind: str, drafter: str = "causal_parallel", **changes) -> dict:
    return head_settings(drafter) | {"corrector": corrector(kind, **changes)}


def random_head(kind: str) -> CausalParallelHead:
    """With a corrector that does something."""
    torch.manual_seed(0)
    model = CausalParallelHead(head_config(corrector=CorrectorConfig(**corrector(kind))))
    torch.nn.init.normal_(model.path_corrector.keys.weight, std=0.5)
    return model


@pytest.fixture(scope="module")
def finished(target_folder, data_folder, tmp_path_factory):
    """A head without a corrector."""
    config = settings(data_folder, tmp_path_factory.mktemp("plain"), steps=30, learning_rate=3e-3)
    fit.run(config, target_folder)
    return export(config)


@pytest.mark.parametrize(
    "objective", [{"objective": "cross_entropy"}, {}, {"hard_weight": 0.3}], ids=["hard", "soft", "both"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradients_are_those_of_the_full_softmax(kind, objective):
    config = FitConfig.model_validate({"steps": 1} | objective)
    module, rows = random_head(kind).path_corrector, 300  # more than one chunk
    embedding, lm_head = torch.randn(VOCAB, 32), torch.randn(VOCAB, 32)
    labels, states = torch.randint(VOCAB, (rows,)), torch.randn(rows, 16 if kind == "gru" else 32)
    top = torch.randn(rows, VOCAB).log_softmax(-1).topk(16)
    teacher = TopK(top.indices.int(), top.values.half())
    start = torch.randn(rows, 32)
    found = []
    for exact in (False, True):
        hidden = start.clone().requires_grad_()
        module.zero_grad()
        tokens, shares = few_labels(config, labels, teacher)
        if exact:
            logits = hidden @ lm_head.T
            ids = logits.topk(12).indices
            queries = module.queries(module.of_slots(hidden), states)
            changes = corrections(queries[:, None], module.candidates(ids, lambda i: embedding[i]))[:, 0]
            log_q = logits.scatter_add(1, ids, changes).log_softmax(-1)
            # Dense targets, and the KL's constant by its definition.
            soft = teacher.logprobs.float().softmax(-1)
            hard = 1.0 if config.objective == "cross_entropy" else config.hard_weight
            nll = -log_q.gather(1, labels[:, None])[:, 0]
            kl = (soft * (soft.log() - log_q.gather(1, teacher.ids.long()))).sum(-1)
            loss = (hard * nll + (1 - hard) * kl).mean()
        else:
            few = corrected_rows(module, hidden, states, lm_head, lambda i: embedding[i], tokens)
            loss = corrected_loss(config, few, tokens, shares)
        loss.backward()
        own = [p.grad for p in module.parameters() if p.grad is not None]
        found.append([loss.detach(), hidden.grad, *own])
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)
    assert len(found[0]) >= 2 + 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_batched_row_is_corrected_by_its_own_text(kind, data_folder):
    """Each row of a batch of many anchors, cut at different depths, against the row computed alone."""
    model = random_head(kind)
    folder = Folder(data_folder)
    sequences = [ref.shard.read(ref.index) for ref in folder.refs(folder.names())[:2]]
    cuts = [[(9, 3), (10, 4), (15, 1)], [(10, 4), (20, 3)]]
    batch = collate(sequences, cuts, model.config)
    embedding = torch.randn(VOCAB, 32)
    student = CorrectedStudent(model, embedding, frozen=False)
    tokens = batch.labels[:, None]
    with torch.no_grad():
        rows = student(batch, tokens, embedding)
        hidden = student.hidden(batch)
        module, index = model.path_corrector, 0
        for sequence, each in zip(sequences, cuts, strict=True):
            for anchor, depth in each:
                above = None
                for k in range(1, depth + 1):
                    parent = sequence.tokens[anchor + k - 1]
                    above = module.advance(parent[None], above, lambda i: embedding[i])
                    queries = module.queries(module.of_slots(hidden[index]), above)
                    known = module.candidates(rows.ids[index], lambda i: embedding[i])
                    expected = corrections(queries, known)[0] if k > 1 else torch.zeros(12)
                    torch.testing.assert_close(rows.changes[index], expected)
                    assert int(batch.depths[index]) == k
                    index += 1
    assert index == len(batch.rows)
    deep = batch.below(1)
    assert deep.depths.tolist() == [d for d in batch.depths.tolist() if d > 1]
    with torch.no_grad():
        again = student(deep, deep.labels[:, None], embedding)
    torch.testing.assert_close(again.changes, rows.changes[batch.depths > 1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_frozen_head_stays_as_it_is_and_its_corrector_learns(
    kind, finished, target_folder, data_folder, tmp_path
):
    changes = {"start": str(finished), "freeze_head": True, "learning_rate": 1e-2, "steps": 60}
    config = settings(data_folder, tmp_path, head=corrected_head(kind), **changes)
    run = fit.Run(config, target_folder)
    before = run.evaluate(None)
    plain = fit.Run(settings(data_folder, tmp_path / "plain", start=str(finished), steps=1), target_folder)
    assert before == plain.evaluate(None)  # untrained, it changes nothing
    refs = next(run.steps())[0]
    first, _ = run.loss(run.make_batch(refs, 0), 0)
    fit.run(config, target_folder)
    saved = state.load(config.run_folder)
    place = export(config)
    tensors = load_head_tensors(place)
    for name, tensor in load_head_tensors(finished).items():
        assert torch.equal(tensors[name], tensor), name
    assert read_head_config(place).model_dump() == saved["head_config"]
    trained = fit.Run(config, target_folder)
    assert trained.loss(trained.make_batch(refs, 0), 0)[0] < first
    card = (place / "README.md").read_text()
    assert f"path corrector (`{kind}`" in card
    assert "the head being frozen" in card
    assert f"{saved['evaluation']['tau_tree16']:.2f}" in card


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("drafter", ["causal_parallel", "diffusion"])
def test_head_and_corrector_learn_a_text_by_heart_together(kind, drafter, target_folder, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    shard = write_shard(data / "shard-00000.safetensors", target_folder, sequences=1, seed=4)
    (data / "heldout-00000.safetensors").write_bytes(shard.read_bytes())
    changes = {"steps": 250, "learning_rate": 3e-3, "objective": "cross_entropy", "ema": 0.0}
    config = settings(data, tmp_path, head=corrected_head(kind, drafter), **changes)
    result = fit.run(config, target_folder)
    assert result["accuracy"] == [1.0, 1.0, 1.0, 1.0]
    assert result["tau_chain"] == result["tau_tree16"] == 5.0
    assert result["reached_chain"] == result["reached_tree16"] == [1.0, 1.0, 1.0, 1.0]
    assert "together with the head" in (export(config) / "README.md").read_text()


def test_an_interrupted_run_ends_with_the_same_weights(finished, target_folder, data_folder, tmp_path):
    changes = {"start": str(finished), "freeze_head": True, "head": corrected_head("gru")}
    whole = settings(data_folder, tmp_path / "whole", **changes)
    fit.run(whole, target_folder)
    parts = settings(data_folder, tmp_path / "parts", **changes)
    interrupted_after(3, parts, target_folder)
    fit.run(parts, target_folder)
    expected, found = state.load(whole.run_folder), state.load(parts.run_folder)
    for name, tensor in expected["ema"].items():
        assert torch.equal(tensor, found["ema"][name]), name


def test_a_corrected_head_is_a_start_for_its_own_kind(finished, target_folder, data_folder, tmp_path):
    first = settings(data_folder, tmp_path / "first", head=corrected_head("mlp"), start=str(finished))
    fit.run(first, target_folder)
    place = export(first)
    again = settings(data_folder, tmp_path / "again", head=corrected_head("mlp"), start=str(place))
    run = fit.Run(again, target_folder)
    for name, tensor in load_head_tensors(place).items():
        assert torch.equal(run.head.state_dict()[name], tensor.float()), name
    other = settings(data_folder, tmp_path / "other", head=corrected_head("gru"), start=str(place))
    with pytest.raises(TrainError, match=r"the head in .* is another one: corrector"):
        fit.Run(other, target_folder)
    bare = settings(data_folder, tmp_path / "bare", start=str(place))
    with pytest.raises(TrainError, match=r"the head in .* is another one: corrector"):
        fit.Run(bare, target_folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"freeze_head": True}, "leaves nothing to train without a head.corrector"),
        ({"freeze_head": True, "head": corrected_head("mlp")}, "set fit.start"),
        ({"objective": "reverse_kl", "head": corrected_head("mlp")}, "cross_entropy or forward_kl"),
        ({"temperature": 2.0, "head": corrected_head("mlp")}, "at temperature 1"),
        ({"negatives": 50, "head": corrected_head("mlp")}, "over the whole vocabulary"),
        ({"features": {"mode": "online"}, "head": corrected_head("mlp")}, "set features.mode to disk"),
        ({"head": corrected_head("mlp") | {"corrector": {"kind": "mlp"}}}, "rank"),
        (
            {"head": head_settings() | {"corrector": corrector("gru") | {"kind": "domino"}}},
            "domino heads are read, not trained",
        ),
        (
            {"head": head_settings("autoregressive") | {"corrector": corrector("gru")}},
            "autoregressive knows its path",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, message, data_folder, tmp_path):
    with pytest.raises(ValidationError, match=message):
        settings(data_folder, tmp_path, **changes)


def test_a_corrector_that_corrects_nothing_is_refused(target_folder, data_folder, tmp_path):
    config = settings(data_folder, tmp_path, head=corrected_head("mlp", skip=4))
    with pytest.raises(TrainError, match="skips 4 depths, but there are only 4"):
        fit.Run(config, target_folder)
