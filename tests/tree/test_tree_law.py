"""Losslessness of target-sample-then-match, by exact enumeration on a tiny vocabulary.

A round commits between 1 and max depth + 1 tokens. Its law is compared after every outcome has been continued
by the target itself to a common length: then it must be the target's own law of that many tokens. The same
check must reject rules that are known to be wrong.
"""

import itertools
import math
from collections import defaultdict

import pytest
import torch
from law_cases import Target, committed_tokens, node_paths, total_variation
from tree_cases import collate, repeat

from jetspec_sglang.tree import accept_match, follow, sample
from jetspec_sglang.tree.accept_reference import follow_reference

VOCAB = 3

# (token, parent) below the root. The last one repeats tokens under different parents, as shared rows do.
SHAPES = {
    "root": [],
    "chain": [(0, 0), (2, 1), (1, 2)],
    "star": [(0, 0), (1, 0), (2, 0)],
    "bushy": [(1, 0), (0, 0), (0, 1), (2, 1)],
    "shared rows": [(0, 0), (1, 0), (2, 1), (2, 2), (0, 2)],
}


def make_tree(shape):
    nodes = [(0, -1, 0, 0.0)]
    for slot, (token, parent) in enumerate(SHAPES[shape], start=1):
        nodes.append((token, parent, nodes[parent][2] + 1, -float(slot)))
    return collate([nodes], len(nodes))


def paths_of(tree):
    return node_paths(tree.tokens[0].tolist(), tree.parent[0].tolist())


def law_of_walk(walk, tree, target):
    """Law of the tokens that `walk(tree, choices [C, N]) -> list of tuples` commits, over all choices."""
    per_node = [target(path) for path in paths_of(tree)]
    choices = list(itertools.product(range(VOCAB), repeat=tree.budget))
    law = defaultdict(float)
    for committed, choice in zip(walk(tree, torch.tensor(choices)), choices, strict=True):
        law[committed] += math.prod(row[token] for row, token in zip(per_node, choice, strict=True))
    return law


def match(tree, choices):
    return committed_tokens(follow(repeat(tree, len(choices)), choices, int(tree.depth.max())))


def distance(walk, shape, temperature):
    tree, target = make_tree(shape), Target(temperature)
    return total_variation(law_of_walk(walk, tree, target), target, int(tree.depth.max()) + 1)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_match_commits_by_the_law_of_the_target(shape, temperature):
    assert distance(match, shape, temperature) < 1e-9


@pytest.mark.parametrize("shape", ["root", "chain", "star"])
def test_accept_match_itself_lazy_and_eager(shape):
    """With probabilities in eighths, eight equally likely uniforms a node enumerate the draws."""
    grid, tree = 8, make_tree(shape)
    target, max_depth = Target(1.0, grid=grid), int(tree.depth.max())
    eighths = (torch.arange(grid, dtype=torch.float64) + 0.5) / grid
    uniforms = torch.cartesian_prod(*[eighths] * tree.budget).reshape(-1, tree.budget)
    batch = repeat(tree, len(uniforms))
    probs = torch.tensor([target(path) for path in paths_of(tree)]).expand(len(uniforms), -1, -1)
    lazy = accept_match(batch, probs, max_depth, uniforms=uniforms)
    eager = follow(batch, sample(probs, uniforms), max_depth)
    for accepted in (lazy, eager):
        law = defaultdict(float)
        for committed in committed_tokens(accepted):
            law[committed] += 1 / len(uniforms)
        assert total_variation(law, target, max_depth + 1) < 1e-9


def mutant(rule):
    """A wrong walk in plain Python, `rule(tokens, parent, choice) -> committed tokens`, as a batched one."""

    def walk(tree, choices):
        tokens, parent = tree.tokens[0].tolist(), tree.parent[0].tolist()
        return [tuple(rule(tokens, parent, choice)) for choice in choices.tolist()]

    return walk


def trusts_the_drafter(tokens, parent, choice):
    """Descends to the best child whatever the target chose."""
    node, committed = 0, []
    while node in parent:
        node = parent.index(node)
        committed.append(tokens[node])
    return [*committed, choice[node]]


def forgets_the_parent(tokens, parent, choice):
    """Looks for the chosen token among all nodes of the next depth, other parents' children included."""
    depth = [0] * len(parent)
    for slot in range(1, len(parent)):
        depth[slot] = depth[parent[slot]] + 1
    node, committed = 0, [choice[0]]
    while True:
        below = [s for s in range(len(parent)) if depth[s] == depth[node] + 1 and tokens[s] == choice[node]]
        if not below:
            return committed
        node = below[0]
        committed.append(choice[node])


def bonus_of_the_root(tokens, parent, choice):
    """Takes the bonus token from the wrong row of logits."""
    path, committed = follow_reference(tokens, parent, choice, len(tokens))
    return [*committed[:-1], choice[0]] if len(path) > 1 else committed


@pytest.mark.parametrize("rule", [trusts_the_drafter, forgets_the_parent, bonus_of_the_root])
def test_enumeration_catches_wrong_walks(rule):
    assert distance(mutant(rule), "shared rows", 1.0) > 0.02
