"""The gate: a head that has learned one text by heart drafts whole blocks of it in the served engine.

Wrong taps, labels, masks or positions in training would leave it with drafts that the target rejects.
"""

from dataclasses import replace

import gate
import pytest
import torch
from oracle import Oracle

from jetspec_sglang.drafters.training import batch as batches
from jetspec_sglang.drafters.training import fit
from jetspec_sglang.serving import Server


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return gate.make_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def sequence(target):
    return gate.answer(target)


@pytest.mark.server
@pytest.mark.parametrize(
    "kind",
    # Served, a diffusion head differs in its mask alone, which tests/server/test_drafters_server.py compares.
    [pytest.param(kind, marks=pytest.mark.matrix if kind == "diffusion" else ()) for kind in gate.KINDS],
)
def test_whole_blocks_are_accepted_by_the_server(kind, target, sequence, tmp_path):
    head = gate.learn(kind, target, sequence, tmp_path)
    args = ["--model-path", str(target), "--skip-tokenizer-init", "--dtype", "float32"]
    args += ["--speculative-algorithm", "JETSPEC", "--speculative-draft-model-path", str(head)]
    args += ["--speculative-num-draft-tokens", str(gate.BLOCK), "--speculative-eagle-topk", "1"]
    params = {"temperature": 0, "max_new_tokens": gate.NEW_TOKENS, "ignore_eos": True}
    with Server([*args, "--max-total-tokens", "2048"]) as server:
        result = server.generate(input_ids=gate.PROMPT, sampling_params=params)
    text = sequence.tokens[len(gate.PROMPT) :][: gate.NEW_TOKENS]
    assert result["output_ids"] == text.tolist()
    assert result["meta_info"]["spec_verify_ct"] == gate.ROUNDS
    assert result["meta_info"]["spec_num_correct_drafts"] == gate.ROUNDS * (gate.BLOCK - 1)


def rounds_of(kind, target, sequence, work) -> list[int]:
    """Tokens that each round commits, by the reference in plain torch, which the server is tested against."""
    head = gate.learn(kind, target, sequence, work)
    _, rounds, _ = Oracle(str(target), str(head)).decode(gate.PROMPT, gate.NEW_TOKENS, gate.BLOCK, width=1)
    return rounds


WHOLE = [gate.BLOCK] * gate.ROUNDS


@pytest.mark.parametrize("kind", gate.KINDS)
def test_the_reference_sees_whole_blocks_too(kind, target, sequence, tmp_path):
    assert rounds_of(kind, target, sequence, tmp_path) == WHOLE


# Each fault is what a trainer might really do, and the head learns its text by heart all the same.
collate, slots_of, mask_of = fit.collate, batches.block_slots, batches.Slots.mask


def swapped_taps(sequences, cuts, config, generator):
    """The two layers the wrong way round."""
    batch = collate(sequences, cuts, config, generator)
    return replace(batch, taps=torch.cat(batch.taps.chunk(2, dim=-1)[::-1], dim=-1))


def late_taps(sequences, cuts, config, generator):
    """Features of the layer's input at the next token."""
    batch = collate(sequences, cuts, config, generator)
    return replace(batch, taps=batch.taps.roll(1, dims=1))


def shifted_labels(sequences, cuts, config, generator):
    """Next-token labels, as a language model has them: the row at a token predicts the one behind it."""
    cuts = [
        [(a, d) for a, d in each if a + d + 1 < len(s.tokens)]
        for s, each in zip(sequences, cuts, strict=True)
    ]
    batch = collate(sequences, cuts, config, generator)
    ahead = [
        s.tokens[a + k + 1]
        for s, each in zip(sequences, cuts, strict=True)
        for a, d in each
        for k in range(1, d + 1)
    ]
    return replace(batch, labels=torch.stack(ahead))


def context_with_the_anchor(self, context, causal):
    """The anchor's own feature, which isn't there yet when it is served."""
    return mask_of(replace(self, context_len=self.context_len + 1), context, causal)


def blocks_see_each_other(self, context, causal):
    """The anchors of later blocks are the answers of earlier ones."""
    return mask_of(replace(self, block_of=torch.zeros_like(self.block_of)), context, causal=False)


def positions_of_the_block_alone(sequences, cuts, config):
    slots, first = slots_of(sequences, cuts, config)
    return replace(slots, positions=slots.positions - slots.context_len), first


FAULTS = {
    "swapped taps": (fit, "collate", swapped_taps),
    "late taps": (fit, "collate", late_taps),
    "shifted labels": (fit, "collate", shifted_labels),
    "context with the anchor": (batches.Slots, "mask", context_with_the_anchor),
    "blocks see each other": (batches.Slots, "mask", blocks_see_each_other),
    "positions from zero": (batches, "block_slots", positions_of_the_block_alone),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_gate_is_shut_to_faulty_training(fault, target, sequence, tmp_path, monkeypatch):
    monkeypatch.setattr(*FAULTS[fault])
    rounds = rounds_of("causal_parallel", target, sequence, tmp_path)
    assert rounds != WHOLE, rounds
