"""Acceptance: which path of the tree the target agrees with, and which tokens that commits.

Two rules, one walk. Each node gets a *choice*, the token the target continues with after that node's path.
The walk starts at the root and descends to the child that holds the choice; where no child does, the choice
itself is committed as the bonus token and the round ends.

* greedy: the choice is the argmax. The committed tokens are those of greedy decoding.
* match: the choice is drawn from the target's distribution at the node (target-sample-then-match).

Why match is exact for a deterministic tree, whatever its shape or scores: the tree is fixed before anything
is drawn, and each committed token, drafts and bonus alike, *is* the draw of the node that precedes it. So
each has the target's law given its prefix; the tree only decides how many of them one round commits. No draft
probability enters, and no residual distribution. Trees whose tokens were sampled can be accepted this way too,
but with less luck than by the rules made for them (`accept_sampled`), which in turn are wrong for top-k trees.

Choices at different nodes are independent, and those off the path are never looked at. Leaving them out
(lazy) or drawing them all at once (eager) therefore gives the same law, and, with one uniform number a node,
the very same result. On the CPU a draw costs a pass over the vocabulary, hence lazy; on an accelerator the
host must not wait to learn where the walk went, hence eager.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .token_tree import NONE, TokenTree

Chooser = Callable[[Tensor | None], Tensor]
"""Target tokens `[B, K]` at the given nodes `[B, K]`; at all N nodes, in order, for None."""


@dataclass(frozen=True, eq=False)
class Acceptance:
    """What one round commits.

    path:    `[B, max_depth + 1]` int64, slots of the accepted path, root first, padded with -1.
    lengths: `[B]` int64, tokens committed: accepted drafts + 1 bonus; equally, nodes on the path.
    tokens:  `[B, max_depth + 1]` int64, committed tokens, the bonus last, padded with -1. `tokens[k]` is the
             target's choice at `path[k]`.
    """

    path: Tensor
    lengths: Tensor
    tokens: Tensor


def follow(tree: TokenTree, choice: Tensor, max_depth: int) -> Acceptance:
    """Walk every tree of the batch at once, given `choice [B, N]` int64 at every node.

    At most `max_depth` drafts are accepted; the builder's depth never cuts anything off. No wait for the
    device: a node is on the path iff it and all its ancestors hold their parent's choice, which pointer
    doubling settles in log2(max_depth) steps.
    """
    above = tree.parent.clamp(min=0)
    # Padding holds token -1, which no target chooses, so it is never on the path.
    on_path = (tree.tokens == choice.gather(1, above)) & (tree.parent >= 0) & (tree.depth <= max_depth)
    on_path[:, 0] = True
    for _ in range(max(max_depth - 1, 0).bit_length()):
        on_path = on_path & on_path.gather(1, above)
        above = above.gather(1, above)

    path = path_through(tree, on_path, max_depth)
    tokens = torch.where(path >= 0, choice.gather(1, path.clamp(min=0)), NONE)
    return Acceptance(path, on_path.sum(1), tokens)


def path_through(tree: TokenTree, on_path: Tensor, max_depth: int) -> Tensor:
    """Slots by depth, `[B, max_depth + 1]` int64, root first and padded with -1, given `on_path [B, N]` bool."""
    slots = torch.arange(tree.budget, device=on_path.device).expand_as(on_path)
    # Each depth has at most one node on the path; the others share a spare column.
    column = torch.where(on_path, tree.depth, max_depth + 1)
    path = tree.depth.new_full((tree.batch_size, max_depth + 2), NONE).scatter_(1, column, slots)
    return path[:, :-1]


def walk(tree: TokenTree, choose: Chooser, max_depth: int) -> Acceptance:
    """`follow` that asks for choices only where the walk arrives: `choose([B, 1] nodes) -> [B, 1] tokens`.

    The host steers, so this is for the CPU. Requests that have ended stay at their last node.
    """
    batch = tree.batch_size
    node = tree.tokens.new_zeros(batch, 1)
    path = tree.tokens.new_full((batch, max_depth + 1), NONE)
    tokens = path.clone()
    alive = torch.ones(batch, 1, dtype=torch.bool, device=node.device)
    for depth in range(max_depth + 1):
        choice = choose(node)
        path[:, depth, None] = torch.where(alive, node, NONE)
        tokens[:, depth, None] = torch.where(alive, choice, NONE)
        is_next = (tree.parent == node) & (tree.tokens == choice)
        alive = alive & is_next.any(1, keepdim=True)
        if not alive.any():
            break
        node = torch.where(alive, is_next.int().argmax(1, keepdim=True), node)
    return Acceptance(path, (path >= 0).sum(1), tokens)


def accept_greedy(tree: TokenTree, logits: Tensor, max_depth: int) -> Acceptance:
    """Accept what greedy decoding would have produced. logits: `[B, N, V]`, any float dtype."""
    return _accept(tree, lambda nodes: _rows(logits, nodes).argmax(-1), max_depth)


def accept_match(
    tree: TokenTree,
    probs: Tensor,
    max_depth: int,
    *,
    uniforms: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Acceptance:
    """Accept by target-sample-then-match.

    probs: `[B, N, V]` fp32, the target's law at each node with temperature, top-k, top-p and penalties
    already applied; rows need not sum to exactly 1. uniforms: `[B, N]` fp64 in [0, 1), the randomness of each
    node (for seeded requests); drawn with `generator` if None.
    """
    uniforms = _uniforms(tree, uniforms, generator)
    return _accept(tree, lambda nodes: sample(_rows(probs, nodes), _rows(uniforms, nodes)), max_depth)


def sample(probs: Tensor, uniforms: Tensor) -> Tensor:
    """One token a row by inverting the distribution function: `[..., V]`, `[...]` -> `[...]` int64.

    Sums run in fp64: in fp32 the rounding of a 150k-entry sum is larger than many of the entries. The number
    is scaled by the row's own total, which must be positive, so that rounding cannot point past the end. The
    search takes the first token whose sum *exceeds* it: a token of probability 0 is never drawn.
    """
    cumulative = probs.cumsum(-1, dtype=torch.float64)
    threshold = uniforms.to(torch.float64) * cumulative[..., -1]
    return torch.searchsorted(cumulative, threshold[..., None], right=True)[..., 0]


def _accept(tree: TokenTree, choose: Chooser, max_depth: int) -> Acceptance:
    if tree.tokens.device.type == "cpu":
        return walk(tree, choose, max_depth)
    return follow(tree, choose(None), max_depth)


def _rows(per_node: Tensor, nodes: Tensor | None) -> Tensor:
    """`[B, N, ...]` at nodes `[B, K]` -> `[B, K, ...]`; everything, uncopied, for None."""
    if nodes is None:
        return per_node
    return per_node[torch.arange(len(nodes), device=nodes.device)[:, None], nodes]


def _uniforms(tree: TokenTree, uniforms: Tensor | None, generator: torch.Generator | None) -> Tensor:
    if uniforms is not None:
        return uniforms
    return torch.rand(tree.tokens.shape, dtype=torch.float64, device=tree.tokens.device, generator=generator)
