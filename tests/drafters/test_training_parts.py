"""Loss, batches and evaluation against slow and obvious versions."""

import math

import pytest
import torch
from tiny_data import head_config, write_shard

from jetspec_sglang.drafters.causal_head import CausalParallelHead, block_mask
from jetspec_sglang.drafters.training.batch import collate, sample_anchors
from jetspec_sglang.drafters.training.evaluate import Tally, accepted_in_tree, truth_table
from jetspec_sglang.drafters.training.loss import soft_label_loss, soft_targets
from jetspec_sglang.drafters.training.shards import DataError, Folder, Shard, plan
from jetspec_sglang.tree import DraftProposal, build_tree


@pytest.fixture
def sequences(data_folder):
    shard = Shard(data_folder / "shard-00000.safetensors")
    return [shard.read(i) for i in range(3)]


def test_loss_and_gradient_equal_autograd_through_stored_logits():
    rng = torch.Generator().manual_seed(0)
    hidden = torch.randn(11, 16, generator=rng, requires_grad=True)
    lm_head = torch.randn(50, 16, generator=rng)
    labels = torch.randint(0, 50, (11,), generator=rng)
    topk = torch.randn(11, 50, generator=rng).log_softmax(-1).topk(8)
    weights = torch.rand(11, generator=rng)
    ids, probs, entropy = soft_targets(topk.indices.int(), topk.values.half(), labels, hard_weight=0.3)
    loss = soft_label_loss(hidden, lm_head, ids, probs, weights, chunk=4)
    (grad,) = torch.autograd.grad(3 * loss, hidden)

    log_q = (hidden @ lm_head.T).log_softmax(-1)
    teacher = topk.values.half().float().softmax(-1)
    kl = (teacher * (teacher.log() - log_q.gather(1, topk.indices))).sum(-1)
    hard = -log_q.gather(1, labels[:, None])[:, 0]
    reference = (weights * (0.7 * kl + 0.3 * hard)).sum()
    (expected,) = torch.autograd.grad(3 * reference, hidden)
    torch.testing.assert_close(loss - (weights * entropy).sum(), reference)
    torch.testing.assert_close(grad, expected)


@pytest.mark.parametrize("causal", [True, False])
def test_a_batched_block_equals_the_block_alone(sequences, causal):
    config = head_config(causal=causal)
    torch.manual_seed(0)
    head = CausalParallelHead(config).requires_grad_(False)
    embedding = torch.randn(config.vocab_size, config.hidden_size)
    rng = torch.Generator().manual_seed(3)
    blocks = [sample_anchors(sequence, 6, config, 4.0, rng) for sequence in sequences]
    batch = collate(sequences, blocks, config, 4.0)
    context = head.context_kv(batch.taps.float(), batch.context_positions())
    out = head.block_hidden(embedding[batch.block_ids], batch.positions, context, batch.mask)
    for i, (sequence, each) in enumerate(zip(sequences, blocks, strict=True)):
        at = 0
        for anchor, slots in each:
            ids = torch.tensor([int(sequence.tokens[anchor])] + [config.mask_token_id] * (slots - 1))
            alone = head.block_hidden(
                embedding[ids][None],
                anchor + torch.arange(slots)[None],
                head.context_kv(sequence.taps[None, :anchor].float(), torch.arange(anchor)[None]),
                block_mask(anchor, slots, causal),
            )
            torch.testing.assert_close(out[i, at : at + slots], alone[0], rtol=1e-4, atol=1e-5)
            at += slots


@pytest.mark.parametrize("causal", [True, False])
def test_labels_and_teacher_are_in_place(sequences, causal):
    """Slot k is labelled with token a+k, taught by the row at a+k-1; nothing past the end has a label."""
    config = head_config(causal=causal)
    sequence = sequences[0]
    last = len(sequence.tokens) - 1
    blocks = [(sequence.prompt_len, 5), (last - 1, 2 if causal else 5)]
    batch = collate([sequence], [blocks], config, gamma=2.0)
    wanted = [sequence.prompt_len + k for k in range(1, 5)] + [last]
    assert batch.depths.tolist() == [1, 2, 3, 4, 1]
    assert batch.positions[0, batch.rows].tolist() == wanted
    assert batch.labels.tolist() == sequence.tokens[wanted].tolist()
    torch.testing.assert_close(batch.topk_ids, sequence.topk_ids[[at - 1 for at in wanted]])
    # The target wrote the text greedily, so the teacher's favourite is the label.
    assert batch.topk_ids[:, 0].tolist() == batch.labels.tolist()
    expected = [1.0] * 5 if causal else [math.exp(-(k - 1) / 2) for k in (1, 2, 3, 4, 1)]
    torch.testing.assert_close(batch.weights, torch.tensor(expected) / sum(expected))


def test_cut_blocks_weigh_depths_as_gamma_says(sequences):
    config = head_config()
    rng = torch.Generator().manual_seed(0)
    counts = torch.zeros(config.block_size)
    trials = 3000
    for _ in range(trials):
        [(anchor, slots)] = sample_anchors(sequences[0], 1, config, 2.0, rng)
        if anchor + config.block_size <= len(sequences[0].tokens):  # not cut by the end of the text
            counts[:slots] += 1
    share = counts[1:] / counts[0]
    torch.testing.assert_close(share, torch.tensor([math.exp(-k / 2) for k in range(4)]), atol=0.03, rtol=0)


def test_anchors_are_response_tokens_with_a_successor(sequences):
    anchors = list(sequences[0].anchors())
    assert anchors[0] == sequences[0].prompt_len
    assert anchors[-1] == len(sequences[0].tokens) - 2


def test_a_pass_covers_the_data_once_and_new_shards_join(target_folder, tmp_path):
    write_shard(tmp_path / "shard-00000.safetensors", target_folder, sequences=5, seed=0)
    folder = Folder(tmp_path)

    def sizes() -> list[tuple[str, int]]:
        batches = plan(folder.refs(folder.names()), 16, 4, torch.Generator().manual_seed(0))
        return sorted((ref.shard.path.name, ref.index) for batch in batches for ref in batch)

    assert len(sizes()) == len(set(sizes()))
    assert len(sizes()) >= 4
    before = len(sizes())
    write_shard(tmp_path / "shard-00001.safetensors", target_folder, sequences=4, seed=1)
    assert len(sizes()) == len(set(sizes()))
    assert len(sizes()) >= before + 4


def test_a_shard_without_metadata_is_refused(tmp_path):
    from safetensors.torch import save_file

    path = tmp_path / "shard-00000.safetensors"
    save_file({"tokens": torch.zeros(3, dtype=torch.int32)}, path)
    with pytest.raises(DataError, match="no `jetspec` metadata"):
        Shard(path)


def test_replay_visits_rounds_as_a_server_would():
    tally = Tally()
    # Response of 8 tokens: the round at 0 accepts 2, the next is at 3 and accepts 0, the last full one at 4.
    tally.replay([2, 9, 9, 0, 1, 0, 0], block_size=4)
    assert (tally.rounds, tally.tokens) == (3, 3 + 1 + 2)


def test_accepted_in_tree_counts_leading_true_tokens(sequences):
    truth = truth_table(sequences[0], 3)[:2]
    ids = torch.stack((truth, (truth + 1) % 90), dim=-1)
    ids[1, 1] = torch.tensor([91, 92])  # the second round's depth 2 misses
    logprobs = torch.tensor([-0.1, -2.5]).expand(2, 3, 2).contiguous()
    tree = build_tree(DraftProposal(ids, logprobs), torch.tensor([7, 7]), 8)
    assert accepted_in_tree(tree, truth).tolist() == [3, 1]
    past_end = truth_table(sequences[0], 3)[-1:]
    assert past_end[0].tolist()[1:] == [-1, -1]
