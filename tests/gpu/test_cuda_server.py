"""Needs CUDA: the same servers as tests/server/test_tiny_server.py, through FlashInfer's and Triton's tree masks."""

import pytest
import tiny
import torch

from jetspec_sglang.serving import Server

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, str]:
    """Head dimension 64, the smallest that FlashInfer takes."""
    folder = tmp_path_factory.mktemp("tiny")
    shape = {"head_dim": 64}
    return {
        "target": str(tiny.tiny_target(folder / "target", layers=4, **shape)),
        "causal_parallel": str(tiny.tiny_head(folder / "head", target_layers=4, **shape)),
        "spec_block": str(tiny.tiny_spec_block_head(folder / "spec_block", target_layers=4, **shape)),
        "autoregressive": str(tiny.tiny_eagle_head(folder / "autoregressive", **shape)),
    }


@pytest.mark.parametrize("backend", ["flashinfer", "triton"])
@pytest.mark.parametrize("budget", [2, 16, 64])
@pytest.mark.parametrize(
    "kind", ["causal_parallel", "causal_parallel, grafts", "spec_block", "autoregressive"]
)
def test_greedy_text_is_the_targets_own(models, backend, budget, kind):
    """bf16 logits of a random model are far apart, so rounding doesn't decide."""
    common = ("--model-path", models["target"], "--skip-tokenizer-init", "--attention-backend", backend)
    name, _, grafts = kind.partition(", ")
    head = ("--speculative-algorithm", "JETSPEC", "--speculative-draft-model-path", models[name])
    if grafts:
        head += ("--jetspec-graft", "suffix")
    if name == "autoregressive":  # its levels can't run on Triton
        head += ("--speculative-draft-attention-backend", "flashinfer")
    params = {"temperature": 0, "max_new_tokens": 48, "ignore_eos": True}
    prompts = [[5 + (7 * i + j) % 480 for j in range(3 + 17 * i)] for i in range(8)]
    texts = []
    for more in ((), (*head, "--speculative-num-draft-tokens", str(budget))):
        with Server([*common, *more, "--mem-fraction-static", "0.3"]) as server:
            answers = server.generate(input_ids=prompts, sampling_params=params)
            texts.append([answer["output_ids"] for answer in answers])
    assert texts[0] == texts[1]


@pytest.mark.parametrize("nodes", [1, 16, 64, 256])
def test_tree_operations_match_the_cpu(nodes):
    from jetspec_sglang.tree import DraftProposal, ancestor_mask, build_tree, follow

    torch.manual_seed(0)
    tokens = torch.stack([torch.randperm(1000)[:120].view(15, 8) for _ in range(4)])
    logprobs = torch.rand(4, 15, 8).neg().sort(-1, descending=True).values
    anchors = torch.arange(4)
    here = build_tree(DraftProposal(tokens, logprobs), anchors, nodes)
    there = build_tree(DraftProposal(tokens.cuda(), logprobs.cuda()), anchors.cuda(), nodes)
    for name in ("tokens", "parent", "depth", "logprob", "size"):
        assert torch.equal(getattr(here, name), getattr(there, name).cpu())
    assert torch.equal(ancestor_mask(here), ancestor_mask(there).cpu())
    choice = torch.randint(0, 1000, here.tokens.shape)
    assert torch.equal(follow(here, choice, 15).path, follow(there, choice.cuda(), 15).path.cpu())
