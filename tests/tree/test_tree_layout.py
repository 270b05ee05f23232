"""Positions, masks and links against their definitions."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_cases import collate, trees

from jetspec_sglang.tree import ancestor_mask, follow, full_mask, positions, retrieve_links
from jetspec_sglang.tree.layout import ancestor_mask_tensor, retrieve_links_tensor
from jetspec_sglang.tree.layout_reference import (
    ancestor_mask_reference,
    full_mask_reference,
    retrieve_links_reference,
)


@settings(max_examples=100, deadline=None)
@given(tree=trees())
def test_ancestor_mask(tree):
    expected = torch.tensor([ancestor_mask_reference(parent) for parent in tree.parent.tolist()])
    assert torch.equal(ancestor_mask(tree), expected)
    assert torch.equal(ancestor_mask_tensor(tree.parent), expected)
    # Each used row sees its own depth + 1 nodes; padding sees itself alone.
    assert torch.equal(expected.sum(-1), tree.depth + 1)


def test_ancestor_mask_of_long_chains():
    for size in range(1, 40):
        chain = collate([[(0, slot - 1, slot, -float(slot)) for slot in range(size)]], size)
        lower = torch.ones(size, size).tril().bool()
        assert torch.equal(ancestor_mask_tensor(chain.parent)[0], lower)
        assert torch.equal(ancestor_mask(chain)[0], lower)


@settings(max_examples=60, deadline=None)
@given(tree=trees(), data=st.data())
def test_full_mask_and_positions(tree, data):
    batch = tree.batch_size
    lens = data.draw(st.lists(st.integers(0, 7), min_size=batch, max_size=batch))
    mask, prefix_lens = ancestor_mask(tree), torch.tensor(lens, dtype=torch.int32)
    expected = torch.tensor(full_mask_reference(mask.tolist(), lens))
    assert torch.equal(full_mask(mask, prefix_lens), expected)
    assert torch.equal(full_mask(mask, prefix_lens, sum(lens)), expected)
    place = positions(tree, prefix_lens)
    assert place.dtype == torch.int64
    assert torch.equal(place, tree.depth + torch.tensor(lens)[:, None])


@settings(max_examples=100, deadline=None)
@given(tree=trees())
def test_links(tree):
    expected = [retrieve_links_reference(parent) for parent in tree.parent.tolist()]
    for links in (retrieve_links(tree), retrieve_links_tensor(tree.parent)):
        assert links[0].tolist() == [first for first, _ in expected]
        assert links[1].tolist() == [sibling for _, sibling in expected]


def walk_links(tokens, first_child, next_sibling, choice):
    """What SGLang's verify kernels do: down to the first child, sideways until a token matches."""
    path, node = [0], first_child[0]
    while node != -1:
        if tokens[node] == choice[path[-1]]:
            path.append(node)
            node = first_child[node]
        else:
            node = next_sibling[node]
    return path


@settings(max_examples=100, deadline=None)
@given(tree=trees(), seed=st.integers(0, 2**16))
def test_links_lead_the_same_way_as_follow(tree, seed):
    choice = torch.randint(0, 4, tree.tokens.shape, generator=torch.Generator().manual_seed(seed))
    accepted = follow(tree, choice, tree.budget)
    first_child, next_sibling = (link.tolist() for link in retrieve_links(tree))
    for b, tokens in enumerate(tree.tokens.tolist()):
        path = walk_links(tokens, first_child[b], next_sibling[b], choice[b].tolist())
        assert accepted.path[b, : len(path)].tolist() == path
        assert accepted.lengths[b] == len(path)


def test_a_lost_sibling_changes_the_walk():
    """Test of the test above: the classic link bug, siblings linked across slots that are not adjacent."""
    tree = collate([[(9, -1, 0, 0.0), (1, 0, 1, -1.0), (5, 1, 2, -2.0), (2, 0, 1, -3.0)]], 4)
    tokens, parent = tree.tokens[0].tolist(), tree.parent[0].tolist()
    first_child, next_sibling = retrieve_links_reference(parent)
    adjacent_only = [
        slot + 1 if slot and slot + 1 < 4 and parent[slot + 1] == parent[slot] else -1 for slot in range(4)
    ]
    choice = [2, 0, 0, 0]
    assert walk_links(tokens, first_child, next_sibling, choice) == [0, 3]
    assert walk_links(tokens, first_child, adjacent_only, choice) == [0]
