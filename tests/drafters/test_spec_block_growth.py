"""Trees whose blocks start at any position, against a slow version that knows nodes by their paths alone."""

import heapq
import math
from collections.abc import Callable
from itertools import count

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_spec_block_expander import WIDTH, World

from jetspec_sglang.drafters.head_config import FRONTIER
from jetspec_sglang.drafters.spec_block_growth import SpecBlockGrowth
from jetspec_sglang.tree import TokenTree, build_tree_by_path

Path = tuple[int, ...]


class Reference:
    """One request's trees, node by node."""

    def __init__(self, world: World, anchor: int, budget: int, depth: int) -> None:
        self.world, self.anchor, self.budget, self.depth = world, anchor, budget, min(depth, budget - 1)
        self.size = world.config.positions
        self.blocks: dict[Path, torch.Tensor] = {}  # outputs [K, H] of those that start at a path
        self.forwards = 0

    def grown(self) -> dict[Path, float]:
        """Paths of the nodes and their log-probabilities, best first."""
        self.start([()])
        for _ in range(1, self.world.config.forwards(self.depth)):
            known = self.best(10**6, below=self.on_line)
            values = [value for path, value in known.items() if path]
            least = values[self.budget - 2] if len(values) >= self.budget - 1 else -math.inf
            wanting = [path for path, value in known.items() if value > least and self.wants(path)]
            if not wanting:
                break
            self.start(wanting[: min(FRONTIER, self.budget - 1)])
        return self.best(self.budget, below=lambda path: True)

    def start(self, paths: list[Path]) -> None:
        self.forwards += 1
        states = [
            self.state(path[:-1]) if path else torch.zeros(self.world.config.hidden_size) for path in paths
        ]
        for path, state in zip(paths, states, strict=True):
            token = torch.tensor([[path[-1] if path else self.anchor]])
            self.blocks[path] = self.world.forward(token, torch.tensor([[len(path)]]), state[None, None])[
                0, 0
            ]

    def place(self, path: Path) -> tuple[Path, int]:
        """The block that a node reads, by its start, and the position."""
        if path in self.blocks:
            return path, 0
        start, position = self.place(path[:-1])
        return start, position + 1

    def state(self, path: Path) -> torch.Tensor:
        start, position = self.place(path)
        return self.blocks[start][position]

    def row(self, path: Path) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities of the likeliest tokens [W] and these, none at a line's end."""
        if self.place(path)[1] == self.size:
            return torch.zeros(0), torch.zeros(0, dtype=torch.int64)
        outputs = self.state(path)[None, None]
        proposal, offsets = self.world.rows(outputs, self.world.config.ranks + WIDTH, False)
        odds = proposal.logprobs[0, 0].double().exp()
        inside, factors = self.world.config.ranks, offsets[0, 0].double().exp()
        rest = 1 - odds[:inside].sum()
        odds[:inside] *= factors[:-1]
        odds[inside:] *= factors[-1]
        chances = odds / (odds[:inside].sum() + rest * factors[-1])
        values, order = chances.log().sort(descending=True, stable=True)
        return values[:WIDTH], proposal.token_ids[0, 0][order[:WIDTH]]

    def best(self, budget: int, below: Callable[[Path], bool]) -> dict[Path, float]:
        """The likeliest nodes, with children where `below` has it."""
        found: dict[Path, float] = {}
        order = count()
        heap = [(0.0, next(order), ())]
        while heap and len(found) < budget:
            score, _, path = heapq.heappop(heap)
            found[path] = -score
            if len(path) < self.depth and below(path):
                for value, token in zip(*(each.tolist() for each in self.row(path)), strict=True):
                    heapq.heappush(heap, (score - value, next(order), (*path, token)))
        return found

    def on_line(self, path: Path) -> bool:
        if path in self.blocks:
            return True
        return self.on_line(path[:-1]) and path[-1] == self.row(path[:-1])[1][0]

    def wants(self, path: Path) -> bool:
        if path in self.blocks or len(path) >= self.depth or not self.on_line(path[:-1]):
            return False
        return not self.on_line(path) or self.place(path)[1] == self.size


def paths_of(tree: TokenTree, row: int = 0) -> dict[Path, float]:
    found: list[Path] = [()]
    for node in range(1, int(tree.size[row])):
        found.append((*found[int(tree.parent[row, node])], int(tree.tokens[row, node])))
    return dict(zip(found, tree.logprob[row].tolist(), strict=False))


def grow(world: World, anchors: list[int], budget: int, depth: int, **how) -> TokenTree:
    growth = SpecBlockGrowth(world.blocks(WIDTH, entropy=bool(how)), depth, budget)
    tree = build_tree_by_path(growth, torch.tensor(anchors), budget, width=WIDTH, depth=depth, **how)
    tree.validate()
    return tree


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([1, 2, 3, 7]),
    st.integers(2, 40),
    st.integers(1, 7),
    st.integers(4, 90),
    st.floats(0.3, 4),
)
def test_blocks_start_where_the_slow_version_starts_them(positions, budget, depth, anchor, sharpness):
    world = World(positions)
    world.lm_head *= sharpness
    reference = Reference(world, anchor, budget, depth)
    wanted = reference.grown()
    world.forwards = 0
    found = paths_of(grow(world, [anchor], budget, depth))
    assert list(found) == list(wanted)
    torch.testing.assert_close(list(found.values()), list(wanted.values()), rtol=1e-3, atol=1e-3)
    assert world.forwards == reference.forwards <= world.config.forwards(reference.depth)


def test_blocks_start_at_positions_of_all_kinds():
    """What the comparison above would not show if no tree did it: off the line, at its end, at any depth."""
    reference = Reference(World(3), 7, 40, 7)
    reference.grown()
    assert {len(path) for path in reference.blocks} >= {0, 1, 2, 3, 4}


def test_requests_do_not_mix():
    """Requests whose trees want different numbers of blocks, at different depths."""
    world, anchors = World(2), [7, 9, 40]
    world.lm_head *= 3
    together = grow(world, anchors, 20, 7)
    for row, anchor in enumerate(anchors):
        wanted = paths_of(grow(world, [anchor], 20, 7))
        found = paths_of(together, row)
        assert list(found) == list(wanted)
        torch.testing.assert_close(list(found.values()), list(wanted.values()), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("scoring", ["accum_logp", "entropy", "hybrid:alpha=2", "top2gap:beta=1,gap=0.1"])
@pytest.mark.parametrize("budget", [4, 9, 20, 40])
def test_where_scores_cannot_be_looked_at_trees_are_the_same(monkeypatch, scoring, budget):
    """As on an accelerator: every forward has as many blocks as it may, also those of no node."""
    world, anchors = World(2), [7, 9, 40]
    world.lm_head *= 0.5
    wanted = grow(world, anchors, budget, 7, scoring=scoring)
    alone = [grow(world, [anchor], budget, 7, scoring=scoring) for anchor in anchors]
    for row, tree in enumerate(alone):
        assert torch.equal(wanted.tokens[row], tree.tokens[0])

    monkeypatch.setattr("jetspec_sglang.drafters.spec_block_growth.on_cpu", lambda tensor: False)
    found = grow(world, anchors, budget, 7, scoring=scoring)
    assert torch.equal(found.tokens, wanted.tokens)
    assert torch.equal(found.parent, wanted.parent)


@pytest.mark.parametrize("scoring", ["hybrid:alpha=0.5", "entropy"])
def test_policies_that_read_entropy(scoring):
    tree = grow(World(2), [7, 9], 24, 7, scoring=scoring)
    assert int(tree.size.min()) == 24


def test_a_deeper_tree_than_one_block_takes_as_many_forwards_as_its_likeliest_path():
    for positions, forwards in ((1, 7), (2, 4), (3, 3), (7, 1)):
        world = World(positions)
        grow(world, [7], 40, 7)
        assert world.forwards == world.config.forwards(7) == forwards
