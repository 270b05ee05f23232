"""The blocked top-k against torch's, on rows with ties, and log-probabilities against log_softmax."""

import pytest
import torch

from jetspec_sglang.kernels.top_k import top_k, top_k_entropy, top_k_logprobs


@pytest.mark.parametrize("vocab", [512, 4096, 5000, 49152])
@pytest.mark.parametrize("k", [1, 3, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_are_the_largest(vocab, k, dtype):
    """bf16 rows have many ties, so indices are checked through their values."""
    torch.manual_seed(0)
    logits = torch.randn(5, vocab).to(dtype)
    values, indices = top_k(logits, k)
    assert torch.equal(values, logits.topk(k).values)
    assert torch.equal(logits.gather(1, indices), values)
    assert all(len(set(row)) == k for row in indices.tolist())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_probabilities_are_normalised_over_the_full_row(dtype):
    torch.manual_seed(0)
    logits = (torch.randn(4, 2048) * 8).to(dtype)
    logprobs, indices = top_k_logprobs(logits, 8)
    assert logprobs.dtype == torch.float32
    assert torch.allclose(logprobs, logits.float().log_softmax(-1).gather(1, indices), atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [0, 1, 8, 100])
def test_entropy_is_that_of_the_full_row(dtype, scale):
    torch.manual_seed(0)
    logits = (torch.randn(4, 4096) * scale).to(dtype)
    logits[1, 100:] = float("-inf")  # tokens that a logit bias forbids
    logprobs, indices, entropy = top_k_entropy(logits, 8)
    assert entropy.dtype == torch.float32
    assert torch.allclose(
        entropy.double(), torch.distributions.Categorical(logits=logits.double()).entropy(), atol=2e-5
    )
    for mine, plain in zip((logprobs, indices), top_k_logprobs(logits, 8), strict=True):
        assert torch.equal(mine, plain)
