"""The likeliest blocks against every block there is."""

from itertools import product

import pytest
import torch

from jetspec_sglang.drafters.autoregressive_head import AutoregressiveHead
from jetspec_sglang.drafters.head_config import AutoregressiveConfig
from jetspec_sglang.drafters.quality.branches import best_branches
from jetspec_sglang.drafters.quality.heads import SharedRows
from jetspec_sglang.drafters.training.expander import PathExpander
from jetspec_sglang.tree import DraftProposal

VOCAB, DEPTH = 6, 3


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("beam", [5, 32])
def test_shared_rows_give_the_best_of_all_products(seed, beam):
    dice = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(2, DEPTH, VOCAB, generator=dice)
    logprobs, ids = logits.log_softmax(-1).sort(descending=True)
    anchors = torch.tensor([1, 2])
    tokens, steps = best_branches(SharedRows(DraftProposal(ids, logprobs)), anchors, DEPTH, 5, beam)
    law = logits.log_softmax(-1)
    for request in range(2):
        joints = {
            path: sum(law[request, d, token].item() for d, token in enumerate(path))
            for path in product(range(VOCAB), repeat=DEPTH)
        }
        best = sorted(joints, key=joints.__getitem__, reverse=True)[:5]
        assert list(map(tuple, tokens[request].tolist())) == best
        assert steps[request].sum(1).tolist() == pytest.approx([joints[path] for path in best], abs=1e-5)


@torch.no_grad()
def test_an_autoregressive_head_is_followed_along_each_path():
    """A beam as wide as the tree is exact. What each path is worth is what the head says along it as a text."""
    torch.manual_seed(3)
    config = AutoregressiveConfig(
        hidden_size=16,
        intermediate_size=24,
        heads=2,
        kv_heads=1,
        head_dim=8,
        rms_norm_eps=1e-6,
        rope_theta=1e4,
        vocab_size=VOCAB,
        block_size=DEPTH + 1,
        target_layer_ids=(0, 1),
        num_target_layers=3,
        max_position_embeddings=64,
    )
    head = AutoregressiveHead(config)
    embedding, lm_head = torch.randn(VOCAB, 16), torch.randn(VOCAB, 16)
    text, taps, anchor = torch.randint(VOCAB, (9,)), torch.randn(9, 32), 5
    expander = PathExpander(head, embedding, lm_head, text, taps, torch.tensor([anchor]), VOCAB)
    tokens, steps = best_branches(expander, text[[anchor]], DEPTH, 5, beam=VOCAB**DEPTH)

    paths = torch.tensor(list(product(range(VOCAB), repeat=DEPTH)))
    texts = torch.cat((text[: anchor + 1].expand(len(paths), -1), paths), dim=1)
    outputs = head.unroll(
        taps[: texts.shape[1]].expand(len(paths), -1, -1),
        embedding[texts],
        torch.full((len(paths), 1), anchor),
        DEPTH,
    )
    law = head.logits(outputs[:, 0], lm_head).log_softmax(-1)
    every = law.gather(2, paths[..., None])[..., 0]
    best = every.sum(1).topk(5).indices
    assert tokens[0].tolist() == paths[best].tolist()
    torch.testing.assert_close(steps[0], every[best])


def test_no_more_blocks_than_there_are():
    rows = SharedRows(DraftProposal(torch.tensor([[[7], [8]]]), torch.tensor([[[-0.5], [-0.25]]])))
    tokens, steps = best_branches(rows, torch.tensor([1]), 2, 5)
    assert tokens.tolist() == [[[7, 8]]]
    assert steps.tolist() == [[[-0.5, -0.25]]]
