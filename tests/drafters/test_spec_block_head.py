"""The spec-block head: what a position may know, blocks that go on from blocks, and the format on disk."""

import json

import pytest
import torch
from tiny_data import head_config, spec_block_config

from jetspec_sglang.drafters.causal_head import CausalParallelHead, block_mask
from jetspec_sglang.drafters.checkpoint import HeadError, load_head_tensors, read_head_config, write_head
from jetspec_sglang.drafters.spec_block_head import SpecBlockHead

CONTEXT, POSITIONS = 6, 4


def make(**changes) -> SpecBlockHead:
    torch.manual_seed(1)
    config = spec_block_config(**{"positions": POSITIONS, "block_size": 9} | changes)
    return SpecBlockHead(config).requires_grad_(False)


def run(head: SpecBlockHead, seed: int = 2, **changes) -> torch.Tensor:
    """Two blocks behind a context, [1, 2, K, H]; one argument of `forward` may be another."""
    rng = torch.Generator().manual_seed(seed)
    hidden = head.config.hidden_size
    taps = torch.randn(1, CONTEXT, head.config.tap_width, generator=rng)
    given = {
        "starts": torch.randn(1, 2, hidden, generator=rng),
        "mask_embedding": torch.randn(hidden, generator=rng),
        "positions": torch.tensor([[CONTEXT, CONTEXT + 2]]),
        "context": head.context_kv(taps, torch.arange(CONTEXT)[None]),
        "seen": torch.ones(1, 2, CONTEXT, dtype=torch.bool),
        "inherited": torch.randn(1, 2, hidden, generator=rng),
    }
    return head(**given | changes)


@pytest.mark.parametrize("at", range(POSITIONS))
def test_a_position_depends_on_the_hidden_states_before_it_and_on_none_behind(at):
    """Where one position's state is disturbed at every layer, in attention's keys as in the shift."""
    head = make()
    plain = run(head)

    def disturb(_shift, _inputs, added: torch.Tensor) -> torch.Tensor:
        return added + (torch.arange(POSITIONS + 1) == at + 1).repeat(2)[:, None]

    for shift in head.shifts:
        shift.register_forward_hook(disturb)
    changed = (run(head) - plain).abs().amax(-1)[0, 0] > 1e-4
    assert changed.tolist() == [False] * at + [True] * (POSITIONS - at)


def test_the_shift_alone_carries_a_state_from_position_to_position():
    """Without attention to the block, a position still knows the ones before, one more for each layer."""
    head = make(layers=2)
    for layer in head.layers:
        layer.self_attn.v_proj.weight.zero_()
    plain, other = run(head), run(head, starts=torch.ones(1, 2, head.config.hidden_size))
    assert ((plain - other).abs().amax(-1)[0, 0] > 1e-4).tolist() == [True, True, False, False]


def test_a_block_inherits_a_state_and_sees_no_other_block():
    head = make()
    plain, inherited = run(head), torch.zeros(1, 2, head.config.hidden_size)
    changed = (run(head, inherited=inherited) - plain).abs().amax(-1)[0]
    assert bool((changed > 1e-4).all())
    starts = torch.ones(1, 2, head.config.hidden_size)
    alone = run(head, starts=starts)
    starts[:, 1] = 2
    torch.testing.assert_close(run(head, starts=starts)[:, 0], alone[:, 0])


def test_what_is_not_seen_does_not_matter():
    head = make()
    seen = torch.ones(1, 2, CONTEXT, dtype=torch.bool)
    seen[0, 0, -1] = False
    changed = (run(head, seen=seen) - run(head)).abs().amax((-1, -2))[0]
    assert (changed > 1e-4).tolist() == [True, False]


def test_without_shifts_a_block_is_a_causal_heads():
    head = make()
    for shift in head.shifts:
        shift.proj.weight.zero_()
    causal = CausalParallelHead(head_config(block_size=9)).requires_grad_(False)
    causal.load_state_dict({name: head.state_dict()[name] for name in causal.state_dict()})
    rng = torch.Generator().manual_seed(3)
    hidden, at = head.config.hidden_size, CONTEXT + torch.arange(POSITIONS + 1)[None]
    starts, mask = torch.randn(1, 1, hidden, generator=rng), torch.randn(hidden, generator=rng)
    context = head.context_kv(
        torch.randn(1, CONTEXT, head.config.tap_width, generator=rng), torch.arange(CONTEXT)[None]
    )
    slots = torch.cat((starts, mask.expand(1, POSITIONS, -1)), dim=1)
    wanted = causal.block_residual(slots, at, context, block_mask(CONTEXT, POSITIONS + 1, causal=True))
    seen = torch.ones(1, 1, CONTEXT, dtype=torch.bool)
    found = head(starts, mask, at[:, :1], context, seen, torch.randn(1, 1, hidden, generator=rng))
    torch.testing.assert_close(found[:, 0], wanted[:, 1:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("positions", [1, 3, 4, 8])
def test_unrolled_blocks_are_those_run_one_by_one(positions):
    """Each with the text's token, the context before the anchor, and the last state of the block before."""
    head = make(positions=positions)
    rng = torch.Generator().manual_seed(3)
    taps = torch.randn(1, 20, head.config.tap_width, generator=rng)
    embeddings = torch.randn(1, 20, head.config.hidden_size, generator=rng)
    mask = torch.randn(head.config.hidden_size, generator=rng)
    anchors = torch.tensor([[4, 9]])
    rows = head.unroll(taps, embeddings, mask, anchors, 8)
    assert rows.shape == (1, 2, 8, head.config.hidden_size)
    for index, anchor in enumerate(anchors[0].tolist()):
        context = head.context_kv(taps[:, :anchor], torch.arange(anchor)[None])
        seen = torch.ones(1, 1, anchor, dtype=torch.bool)
        inherited, found = torch.zeros(1, 1, head.config.hidden_size), []
        for done in range(0, 8, positions):
            at = anchor + done
            block = head(embeddings[:, at : at + 1], mask, torch.tensor([[at]]), context, seen, inherited)
            inherited = block[:, :, -1]
            found.append(block[0, 0])
        torch.testing.assert_close(rows[0, index], torch.cat(found)[:8], rtol=1e-4, atol=1e-5)


def test_a_written_head_is_read_again(tmp_path):
    head = make()
    write_head(tmp_path, head.config, head.state_dict(), "A head.")
    assert read_head_config(tmp_path) == head.config
    again = load_head_tensors(tmp_path)
    assert again.keys() == head.state_dict().keys()
    for name, tensor in head.state_dict().items():
        torch.testing.assert_close(again[name], tensor.bfloat16())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"positions": None}, "spec_block_config: key positions is missing"),
        ({"branches": 3}, "spec_block_config has unknown keys branches"),
        ({"positions": 9}, "positions is 9, but the head is 8 depths deep"),
        ({"ranks": 96}, "ranks is 96, but there are only 96 tokens"),
        ({"mask_token_id": 96}, "mask_token_id 96 outside the vocabulary of 96"),
        ({"target_layer_ids": [0, 4]}, "out of range: target has 4 layers"),
    ],
    ids=str,
)
def test_a_config_that_cannot_be_is_refused(tmp_path, changes, said):
    head = make()
    write_head(tmp_path, head.config, head.state_dict(), "A head.")
    path = tmp_path / "config.json"
    raw = json.loads(path.read_text())
    raw["spec_block_config"] |= changes
    path.write_text(json.dumps(raw))
    with pytest.raises(HeadError, match=said):
        read_head_config(tmp_path)
