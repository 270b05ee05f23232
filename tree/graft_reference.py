"""`graft` in plain Python, for one request, and the tree that `branches` is tested against."""

import numpy as np

from .token_tree import TokenTree

Path = tuple[int, ...]


def edges_of(tree: TokenTree, request: int) -> dict[Path, np.float32]:
    """Log-chance of each node given its parent, by the tokens on its path, in the order of the slots."""
    tokens, parents, logprobs = (
        field[request].tolist() for field in (tree.tokens, tree.parent, tree.logprob.double())
    )
    paths: list[Path] = [()]
    edges = {}
    for slot in range(1, int(tree.size[request])):
        up = parents[slot]
        paths.append((*paths[up], tokens[slot]))
        edges[paths[slot]] = np.float32(logprobs[slot]) - np.float32(logprobs[up])
    return edges


def graft_one(
    tree: TokenTree, branches: TokenTree, request: int, budget: int
) -> list[tuple[Path, np.float32]]:
    """(path, log-chance) of the drafts of request `request`'s grafted tree, best first; `budget` counts the root."""
    edges = edges_of(tree, request)
    for path, edge in edges_of(branches, request).items():
        edges[path] = max(edge, edges.get(path, edge))
    chance: dict[Path, np.float32] = {(): np.float32(0)}
    for path, edge in edges.items():  # parents before children in both trees
        chance[path] = chance[path[:-1]] + edge
    drafts = sorted(list(chance.items())[1:], key=lambda draft: -draft[1])
    return drafts[: budget - 1]
