"""Loss, batches and evaluation against slow and obvious versions."""

import math
import shutil

import pytest
import torch
from tiny_data import autoregressive_config, head_config, write_shard

from jetspec_sglang.drafters.autoregressive_head import AutoregressiveHead
from jetspec_sglang.drafters.causal_head import CausalParallelHead, block_mask
from jetspec_sglang.drafters.training import flex as flex_module
from jetspec_sglang.drafters.training.batch import collate, sample_anchors
from jetspec_sglang.drafters.training.errors import TrainError
from jetspec_sglang.drafters.training.evaluate import Replay, accepted_in_tree, draft, truth_table
from jetspec_sglang.drafters.training.shards import Folder, Shard, TopK, plan
from jetspec_sglang.drafters.training.student import Student
from jetspec_sglang.tree import DraftProposal, build_tree


@pytest.fixture
def sequences(data_folder):
    shard = Shard(data_folder / "shard-00000.safetensors")
    return [shard.read(i) for i in range(3)]


def embedding_of(config) -> torch.Tensor:
    return torch.randn(config.vocab_size, config.hidden_size, generator=torch.Generator().manual_seed(1))


def cuts_of(sequences, config, count=6, gamma=4.0):
    rng = torch.Generator().manual_seed(3)
    return [sample_anchors(sequence, count, config.block_size, gamma, rng) for sequence in sequences]


@pytest.mark.parametrize("causal", [True, False])
def test_a_batched_block_equals_the_block_alone(sequences, causal):
    config = head_config(causal=causal)
    torch.manual_seed(0)
    head = CausalParallelHead(config).requires_grad_(False)
    embedding, cuts = embedding_of(config), cuts_of(sequences, config)
    rows = Student(head, embedding)(collate(sequences, cuts, config))
    alone = []
    for sequence, each in zip(sequences, cuts, strict=True):
        for anchor, depths in each:
            slots = config.block_size  # more than the labels: a causal slot does not see those behind it
            ids = torch.tensor([int(sequence.tokens[anchor])] + [config.mask_token_id] * (slots - 1))
            out = head.block_hidden(
                embedding[ids][None],
                anchor + torch.arange(slots)[None],
                head.context_kv(sequence.taps[None, :anchor].float(), torch.arange(anchor)[None]),
                block_mask(anchor, slots, causal),
            )
            alone.append(out[0, 1 : 1 + depths])
    torch.testing.assert_close(rows, torch.cat(alone), rtol=1e-4, atol=1e-5)


def test_batched_autoregressive_rows_equal_the_anchor_alone(sequences):
    config = autoregressive_config()
    torch.manual_seed(0)
    head = AutoregressiveHead(config).requires_grad_(False)
    embedding, cuts = embedding_of(config), cuts_of(sequences, config)
    rows = Student(head, embedding)(collate(sequences, cuts, config))
    alone = []
    for sequence, each in zip(sequences, cuts, strict=True):
        for anchor, depths in each:
            out = head.unroll(
                sequence.taps[None].float(),
                embedding[sequence.tokens][None],
                torch.tensor([[anchor]]),
                config.block_size - 1,
            )
            alone.append(head.norm(out[0, 0, :depths]))
    torch.testing.assert_close(rows, torch.cat(alone), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("causal", [True, False])
def test_flex_attention_equals_the_written_out_mask(sequences, causal):
    flex, dense = both_ways(sequences, causal, compiled=False)
    torch.testing.assert_close(flex, dense, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling for a CPU takes g++")
def test_the_mask_can_be_compiled(sequences, monkeypatch):
    """For fixed sizes: with sizes that vary, as on a GPU, the CPU's compiler fails."""
    monkeypatch.setattr(flex_module, "_compiled", lambda: torch.compile(flex_module.flex_attention))
    flex, dense = both_ways(sequences, True, compiled=True)
    torch.testing.assert_close(flex, dense, rtol=1e-4, atol=1e-5)


def both_ways(sequences, causal: bool, compiled: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The used slots of a batch through FlexAttention and through the mask that is written out."""
    config = head_config(causal=causal, head_dim=16)
    torch.manual_seed(0)
    head = CausalParallelHead(config).requires_grad_(False)
    batch = collate(sequences, cuts_of(sequences, config), config)
    embeddings = embedding_of(config)[batch.slots.ids]
    context = batch.taps.shape[1]
    kv = head.context_kv(batch.taps.float(), torch.arange(context).expand(len(sequences), -1))
    dense = head.block_hidden(embeddings, batch.slots.positions, kv, batch.slots.mask(context, causal))
    flex = flex_module.flex_block_hidden(head, embeddings, batch.slots, kv, compiled=compiled)
    used = batch.slots.block_of >= 0
    return flex[used], dense[used]


@pytest.mark.parametrize("kind", ["causal", "diffusion", "autoregressive"])
def test_labels_and_teacher_are_in_place(sequences, kind):
    """Depth k is labelled with token a+k, taught by the row at a+k-1; nothing past the end has a label."""
    config = autoregressive_config() if kind == "autoregressive" else head_config(causal=kind == "causal")
    sequence = sequences[0]
    last = len(sequence.tokens) - 1
    batch = collate([sequence], [[(sequence.prompt_len, 4), (last - 1, 1)]], config)
    wanted = [sequence.prompt_len + k for k in range(1, 5)] + [last]
    assert batch.depths.tolist() == [1, 2, 3, 4, 1]
    if batch.slots is not None:
        assert batch.slots.positions[0, batch.rows].tolist() == wanted
        assert batch.slots.ids[0, batch.rows].tolist() == [config.mask_token_id] * 5
    assert batch.labels.tolist() == sequence.tokens[wanted].tolist()
    assert isinstance(batch.teacher, TopK)
    torch.testing.assert_close(batch.teacher.ids, sequence.teacher.ids[[at - 1 for at in wanted]])
    # The target wrote the text greedily, so the teacher's favourite is the label.
    assert batch.teacher.ids[:, 0].tolist() == batch.labels.tolist()


def test_cut_labels_weigh_depths_as_gamma_says(sequences):
    rng = torch.Generator().manual_seed(0)
    counts = torch.zeros(5)
    for _ in range(3000):
        [(anchor, depths)] = sample_anchors(sequences[0], 1, 5, 2.0, rng)
        if anchor + 5 <= len(sequences[0].tokens):  # not cut by the end of the text
            counts[: depths + 1] += 1
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
    with pytest.raises(TrainError, match="not a shard"):
        Shard(path)


def test_replay_visits_rounds_as_a_server_would():
    replay = Replay(depth=3)
    assert (replay.tau, replay.reached) == (0, [0, 0, 0])
    # Response of 8 tokens: the round at 0 accepts 2, the next is at 3 and accepts 0, the last full one at 4.
    replay.add([2, 9, 9, 0, 1, 0, 0])
    assert replay.rounds == 3
    assert replay.reached == pytest.approx([2 / 3, 1 / 3, 0])
    assert replay.tau == pytest.approx((3 + 1 + 2) / 3)


def test_accepted_in_tree_counts_leading_true_tokens(sequences):
    anchors = torch.tensor(list(sequences[0].anchors()))
    truth = truth_table(sequences[0], anchors[:2], 3)
    ids = torch.stack((truth, (truth + 1) % 90), dim=-1)
    ids[1, 1] = torch.tensor([91, 92])  # the second round's depth 2 misses
    logprobs = torch.tensor([-0.1, -2.5]).expand(2, 3, 2).contiguous()
    tree = build_tree(DraftProposal(ids, logprobs), torch.tensor([7, 7]), 8)
    assert accepted_in_tree(tree, truth).tolist() == [3, 1]
    past_end = truth_table(sequences[0], anchors[-1:], 3)
    assert past_end[0].tolist()[1:] == [-1, -1]


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_an_autoregressive_tree_continues_its_own_path(sequences, depth):
    """Where the tree's likeliest child is the true token, the row below it is that of the true text."""
    config = autoregressive_config(block_size=depth + 1)
    torch.manual_seed(0)
    head = AutoregressiveHead(config).requires_grad_(False)
    embedding, sequence = embedding_of(config), sequences[0]
    anchors = torch.tensor(list(sequence.anchors()))[:4]
    best, tree = draft(head, embedding, embedding, sequence, anchors)
    assert tree.depth.max() == depth
    for row, anchor in enumerate(anchors.tolist()):
        # The text as the head would have it: follow the tree's first child, and draft along that text.
        children = [i for i in range(tree.budget) if tree.parent[row, i] == 0]
        path = [int(best[row, 0])]
        assert path[0] == int(tree.tokens[row, children[0]])
        for k in range(1, depth):
            tokens = torch.cat((sequence.tokens[: anchor + 1], torch.tensor([*path, 0, 0])))
            taps = torch.zeros(len(tokens), config.tap_width)
            taps[:anchor] = sequence.taps[:anchor].float()
            out = head.unroll(taps[None], embedding[tokens][None], torch.tensor([[anchor]]), k + 1)
            path.append(int(head.logits(out[0, 0, k], embedding).argmax()))
        node, found = 0, []
        for token in path:
            below = [i for i in range(tree.budget) if tree.parent[row, i] == node]
            node = next((i for i in below if int(tree.tokens[row, i]) == token), None)
            assert node == below[0]
            found.append(token)
        assert found == path
