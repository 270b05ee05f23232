"""A head's trees on the scale of chances to be accepted, as earlier rounds teach them (`tally`).

A head is over-confident here and too shy there. What its edges claim is counted by depth and by the size of the
claim.
"""

import numba
import numpy as np
import torch

from .tally import Tally
from .token_tree import TokenTree

DEPTHS = np.array([2, 3, 4, 6, 9])  # where classes of depths begin, the first holds 1 alone
CLAIMS = np.array([0.03, 0.06, 0.12, 0.25, 0.4, 0.55, 0.7, 0.85, 0.95])
CELLS = (len(DEPTHS) + 1) * (len(CLAIMS) + 1)


def claims(tree: TokenTree) -> tuple[np.ndarray, np.ndarray]:
    """What each node claims, that it follows its parent, and the claim's kind -> fp64 and int64 [B, N].

    The tree lies on the host. Roots and padding claim nothing: 1, and some kind.
    """
    logprob, parent = tree.logprob.numpy().astype(np.float64), tree.parent.numpy()
    above = np.take_along_axis(logprob, np.maximum(parent, 0), 1)
    claim = np.exp(np.where(parent >= 0, logprob - above, 0.0))
    depths = np.searchsorted(DEPTHS, tree.depth.numpy(), "right")
    return claim, depths * (len(CLAIMS) + 1) + np.searchsorted(CLAIMS, claim, "right")


def with_chances(tree: TokenTree, claim: np.ndarray, cell: np.ndarray, tally: Tally) -> TokenTree:
    """The same trees, whose `logprob` is the logarithm of the chance that the whole path is accepted."""
    edges = np.log(tally.chance(claim, cell)).astype(np.float32)
    return TokenTree(
        tree.tokens, tree.parent, tree.depth, torch.from_numpy(_sums(tree.parent.numpy(), edges)), tree.size
    )


@numba.njit(cache=True)
def _sums(parent, edges):
    """Sums along each path; 0 for roots, -inf for padding."""
    paths = np.full(edges.shape, -np.inf, np.float32)
    for b in range(len(edges)):
        paths[b, 0] = 0
        for slot in range(1, edges.shape[1]):
            if parent[b, slot] >= 0:
                paths[b, slot] = paths[b, parent[b, slot]] + edges[b, slot]
    return paths
