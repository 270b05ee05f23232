"""What the target thinks of branches: many at once against one by one, and of its own choice."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from jetspec_sglang.drafters.quality.branches import best_branches
from jetspec_sglang.drafters.quality.target_logprobs import branch_logprobs
from jetspec_sglang.kernels.top_k import top_k_logprobs
from jetspec_sglang.tree import DraftProposal


@torch.no_grad()
def plain(model, text, branch) -> torch.Tensor:
    """Log-probabilities of a branch behind a text, by an ordinary forward."""
    logits = model(torch.cat((text, branch))[None]).logits[0]
    law = logits[len(text) - 1 : -1].log_softmax(-1)
    return law.gather(1, branch[:, None])[:, 0]


@pytest.mark.parametrize("attention", ["sdpa", "eager", "jetspec_slab"])
def test_branches_at_once_are_what_each_is_alone(target, plain_model, generator, attention):
    """`generator` registers the last of these kinds of attention."""
    packed = AutoModelForCausalLM.from_pretrained(target, attn_implementation=attention).eval()
    dice = torch.Generator().manual_seed(0)
    text = torch.randint(512, (40,), generator=dice)
    anchors = [10, 10, 3, 39, 25]
    branches = [torch.randint(512, (length,), generator=dice) for length in (7, 4, 1, 6, 7)]
    found = branch_logprobs(packed, text, anchors, branches)
    for anchor, branch, said in zip(anchors, branches, found, strict=True):
        torch.testing.assert_close(said, plain(plain_model, text[: anchor + 1], branch), rtol=1e-4, atol=1e-4)


class Itself:
    """The target as a drafter of its own."""

    def __init__(self, model, text, width):
        self.model, self.paths, self.width = model, text[:, None], width

    @torch.no_grad()
    def __call__(self, tokens, parents, depth):
        if depth:
            before = self.paths.gather(1, parents[..., None].expand(-1, -1, self.paths.shape[2]))
            self.paths = torch.cat((before, tokens[..., None]), dim=2)
        logits = self.model(self.paths.flatten(0, 1)).logits[:, -1]
        logprobs, ids = top_k_logprobs(logits, self.width)
        shape = (*tokens.shape, self.width)
        return DraftProposal(ids.view(shape), logprobs.view(shape))


def test_a_drafter_that_is_the_target_has_no_gap(plain_model):
    text = torch.randint(512, (12,), generator=torch.Generator().manual_seed(1))
    tokens, steps = best_branches(Itself(plain_model, text[None], 16), text[-1:], 4, 5)
    said = branch_logprobs(plain_model, text, [11] * 5, list(tokens[0]))
    torch.testing.assert_close(steps[0], torch.stack(said), rtol=1e-4, atol=1e-4)
    assert len(set(map(tuple, tokens[0].tolist()))) == 5
