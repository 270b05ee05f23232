"""A batch of token trees, one per request."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

NONE = -1
"""Fills every index and token that is not there. It equals no node and no sampled token, so a comparison
with it is False and no walk enters a padding slot."""


@dataclass(frozen=True, eq=False)
class TokenTree:
    """Nodes of B trees in N slots each. Slot 0 is the root: the anchor, last committed token.

    tokens:  `[B, N]` int64; distinct among siblings.
    parent:  `[B, N]` int64, slot of the parent; -1 for the root.
    depth:   `[B, N]` int64; 0 for the root.
    logprob: `[B, N]` fp32, sum of the draft log-probabilities on the path; 0 for the root.
    size:    `[B]` int64, slots in use, 1 <= size <= N.

    Order: parents come before children, and the first n nodes are themselves the tree that n nodes would have
    given, so that any smaller budget is a prefix cut. In an optimal tree they come best first: without a
    bonus (`score`) keys, and for `accum_logp` log-probabilities, never increase.

    Padding slots (index >= size) hold token -1, parent -1, depth 0, logprob -inf.
    """

    tokens: Tensor
    parent: Tensor
    depth: Tensor
    logprob: Tensor
    size: Tensor

    @classmethod
    def roots(cls, anchors: Tensor) -> "TokenTree":
        """Trees of one node, for `anchors [B]` int64: a round over them is plain decoding."""
        root = anchors[:, None]
        zero = torch.zeros_like(root)
        return cls(root, torch.full_like(root, NONE), zero, zero.float(), torch.ones_like(anchors))

    @property
    def batch_size(self) -> int:
        return self.tokens.shape[0]

    @property
    def budget(self) -> int:
        """Slots per request, root included."""
        return self.tokens.shape[1]

    def prefix(self, budget: int) -> "TokenTree":
        """The best trees of at most `budget` nodes (root included), as views of this one.

        Raises ValueError unless 1 <= budget <= N.
        """
        if not 1 <= budget <= self.budget:
            raise ValueError(f"cannot cut {self.budget} slots to a budget of {budget}")
        return TokenTree(
            tokens=self.tokens[:, :budget],
            parent=self.parent[:, :budget],
            depth=self.depth[:, :budget],
            logprob=self.logprob[:, :budget],
            size=self.size.clamp(max=budget),
        )

    def shortened(self, sizes: Tensor) -> "TokenTree":
        """The trees of at most `sizes [B]` int64 nodes, in as many slots as before. 1 is the root alone."""
        inside = torch.arange(self.budget, device=sizes.device) < sizes[:, None]
        return TokenTree(
            tokens=torch.where(inside, self.tokens, NONE),
            parent=torch.where(inside, self.parent, NONE),
            depth=torch.where(inside, self.depth, 0),
            logprob=torch.where(inside, self.logprob, float("-inf")),
            size=torch.minimum(self.size, sizes),
        )

    def to(self, device: torch.device) -> "TokenTree":
        """The same trees there; a copy to an accelerator is not waited for, one to the host is."""
        if self.tokens.device == device:
            return self
        queued = device.type != "cpu"  # the host would read what has not arrived
        return TokenTree(
            *(getattr(self, each.name).to(device, non_blocking=queued) for each in fields(TokenTree))
        )

    def rows(self, index: Tensor) -> "TokenTree":
        """The trees of requests `index` [B'] int64."""
        return TokenTree(*(getattr(self, field.name)[index] for field in fields(self)))

    @staticmethod
    def cat(trees: "Sequence[TokenTree]") -> "TokenTree":
        """One batch of the trees of several, which must have the same number of slots."""
        return TokenTree(
            *(torch.cat([getattr(tree, field.name) for tree in trees]) for field in fields(TokenTree))
        )

    def validate(self) -> None:
        """Raise ValueError at the first broken invariant.

        For tests and debugging: it copies to the host and walks every node in Python.
        """
        shape = self.tokens.shape
        for name in ("tokens", "parent", "depth", "logprob"):
            tensor, dtype = getattr(self, name), torch.float32 if name == "logprob" else torch.int64
            if tensor.shape != shape or tensor.dtype != dtype:
                raise ValueError(
                    f"{name} must be {dtype} {tuple(shape)}: {tensor.dtype} {tuple(tensor.shape)}"
                )
        if self.size.shape != shape[:1] or self.size.dtype != torch.int64:
            raise ValueError(f"size must be int64 [{shape[0]}]")
        for request, size in enumerate(self.size.tolist()):
            if not 1 <= size <= shape[1]:
                raise ValueError(f"request {request}: size {size} outside 1..{shape[1]}")
            rows = (self.tokens, self.parent, self.depth, self.logprob)
            nodes = list(zip(*(row[request].tolist() for row in rows), strict=True))
            try:
                _validate_nodes(nodes, size)
            except ValueError as broken:
                raise ValueError(f"request {request}: {broken}") from None


def _validate_nodes(nodes: list[tuple[int, int, int, float]], size: int) -> None:
    if nodes[0][1:] != (NONE, 0, 0.0):
        raise ValueError(f"root must have parent -1, depth 0, logprob 0: {nodes[0]}")
    siblings: set[tuple[int, int]] = set()
    for slot, (token, parent, depth, logprob) in enumerate(nodes[1:size], start=1):
        if token < 0:
            raise ValueError(f"node {slot} has token {token}")
        if not 0 <= parent < slot:
            raise ValueError(f"node {slot} has parent {parent}: parents come before children")
        if depth != nodes[parent][2] + 1:
            raise ValueError(f"node {slot} has depth {depth}, its parent {nodes[parent][2]}")
        if not float("-inf") < logprob <= nodes[parent][3]:
            raise ValueError(f"node {slot} has logprob {logprob}, its parent {nodes[parent][3]}")
        if (parent, token) in siblings:
            raise ValueError(f"two children of node {parent} hold token {token}")
        siblings.add((parent, token))
    for slot, node in enumerate(nodes[size:], start=size):
        if node != (NONE, NONE, 0, float("-inf")):
            raise ValueError(f"padding slot {slot} holds {node}")
