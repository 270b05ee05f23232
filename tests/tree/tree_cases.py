"""Hypothesis strategies and small helpers shared by the tree tests."""

import numpy as np
import torch
from hypothesis import strategies as st

from jetspec_sglang.tree import NONE, DraftProposal, TokenTree

NEG_INF = float("-inf")

# Quarters are exact in fp32 and collide often; 0.0 makes a child tie with its parent; -inf is "never".
TIED = st.sampled_from([0.0, -0.0, -0.25, -0.5, -0.75, -1.0, NEG_INF])
ROUNDED = st.floats(min_value=-8, max_value=0, width=32)
# Less than half a step of fp32 near 1: what a sum gives depends on the order in which it is added up.
GRAINY = st.sampled_from([-1.0, -1.0 - 2.0**-23, -0.9 * 2.0**-24, -(2.0**-25), -0.5])
TIED_ENTROPY = st.sampled_from([0.0, 0.25, 0.5, 1.0, float("nan"), float("inf")])
ENTROPY = st.floats(min_value=0, max_value=12, width=32)
GRAINY_ENTROPY = st.sampled_from([1.0, 1.0 - 2.0**-24, 2.0, 0.0])


@st.composite
def proposals(draw, max_batch=3, max_depth=4, max_width=4):
    """(proposal with entropy, anchors), with many ties or with arbitrary fp32 values."""
    shape = [draw(st.integers(1, limit)) for limit in (max_batch, max_depth, max_width)]
    values, entropies = draw(
        st.sampled_from(
            [(TIED, TIED_ENTROPY), (ROUNDED, ENTROPY), (TIED | ROUNDED, ENTROPY), (GRAINY, GRAINY_ENTROPY)]
        )
    )
    count = int(np.prod(shape))
    logprobs = torch.tensor(draw(st.lists(values, min_size=count, max_size=count)), dtype=torch.float32)
    logprobs = logprobs.reshape(shape).sort(-1, descending=True).values
    seed = draw(st.integers(0, 2**16))
    generator = torch.Generator().manual_seed(seed)
    token_ids = torch.rand(*shape[:2], 50, generator=generator).argsort(-1)[..., : shape[2]]
    anchors = torch.randint(0, 50, (shape[0],), generator=generator)
    count = shape[0] * shape[1]
    entropy = torch.tensor(draw(st.lists(entropies, min_size=count, max_size=count)), dtype=torch.float32)
    return DraftProposal(token_ids, logprobs, entropy.reshape(shape[:2])), anchors


@st.composite
def trees(draw, max_batch=3, max_budget=9, vocab=4):
    """Any valid trees, ragged, not only those that a builder would grow."""
    batch, budget = draw(st.integers(1, max_batch)), draw(st.integers(1, max_budget))
    return collate([draw(one_tree(budget, vocab)) for _ in range(batch)], budget)


@st.composite
def one_tree(draw, budget, vocab):
    size = draw(st.integers(1, budget))
    nodes = [(draw(st.integers(0, vocab - 1)), NONE, 0, 0.0)]
    for slot in range(1, size):
        free = {
            parent: sorted(set(range(vocab)) - {node[0] for node in nodes[1:] if node[1] == parent})
            for parent in range(slot)
        }
        parent = draw(st.sampled_from([parent for parent in free if free[parent]]))
        token = draw(st.sampled_from(free[parent]))
        nodes.append((token, parent, nodes[parent][2] + 1, -float(slot)))
    return nodes


def collate(requests, budget):
    """Lists of (token, parent, depth, logprob) -> TokenTree."""
    padded = [list(nodes) + [(NONE, NONE, 0, NEG_INF)] * (budget - len(nodes)) for nodes in requests]
    tokens, parent, depth, logprob = (
        torch.tensor([[node[field] for node in nodes] for nodes in padded]) for field in range(4)
    )
    size = torch.tensor([len(nodes) for nodes in requests])
    return TokenTree(tokens, parent, depth, logprob.to(torch.float32), size)


def assert_same(left, right):
    """Equal in every field and every bit."""
    for name in vars(left):
        a, b = getattr(left, name), getattr(right, name)
        assert a.dtype == b.dtype, name
        assert torch.equal(a, b), f"{name}:\n{a}\n{b}"


def repeat(tree, batch):
    """One tree, `batch` times."""
    fields = (getattr(tree, name) for name in vars(tree))
    return TokenTree(*(field.repeat(batch, *[1] * (field.dim() - 1)) for field in fields))
