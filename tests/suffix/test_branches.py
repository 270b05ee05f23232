"""What may come next, from what came after: against plain Python, and its invariants."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetspec_sglang.drafters.suffix import reference
from jetspec_sglang.drafters.suffix.branches import CELLS, grow

DEPTH = 4
voters = st.lists(
    st.tuples(st.lists(st.integers(0, 2), max_size=DEPTH), st.integers(1, 40)), min_size=0, max_size=12
)
factors = st.lists(st.floats(0.1, 3), min_size=CELLS, max_size=CELLS)


def padded(rows) -> np.ndarray:
    after = np.full((len(rows), DEPTH), -1, np.int32)
    for number, row in enumerate(rows):
        after[number, : len(row)] = row
    return after


def paths(branches) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for token, up in zip(branches.tokens[1:].tolist(), branches.parent[1:].tolist(), strict=True):
        found.append((*found[up], token))
    return found[1:]


@settings(max_examples=200, deadline=None)
@given(voters, factors, st.integers(1, 20))
def test_it_is_the_reference(given_voters, given_factors, most):
    rows, matches = [row for row, _ in given_voters], [match for _, match in given_voters]
    got = grow(9, padded(rows), np.array(matches, np.int64), np.array(given_factors), most)
    want = reference.grow(rows, matches, given_factors, 1000)
    assert len(got.tokens) == min(most, 1 + len(want))
    assert (got.tokens[0], got.parent[0], got.depth[0], got.logprob[0]) == (9, -1, 0, 0)
    chances = {path: chance for path, chance, _, _ in want}
    for path, chance in zip(paths(got), got.logprob[1:].tolist(), strict=True):
        assert chance == pytest.approx(chances[path], abs=1e-4)
    # The best ones, in order: equal ones may change places where sums round differently.
    assert got.logprob[1:].tolist() == pytest.approx([draft[1] for draft in want[: most - 1]], abs=1e-4)
    claims = {path: (claim, cell) for path, _, claim, cell in want}
    for path, claim, cell in zip(paths(got), got.claim[1:].tolist(), got.cell[1:].tolist(), strict=True):
        assert (pytest.approx(claim), cell) == claims[path]


@settings(max_examples=100, deadline=None)
@given(voters, factors, st.integers(2, 20))
def test_a_smaller_tree_is_the_beginning_of_a_larger_one(given_voters, given_factors, most):
    rows, matches = [row for row, _ in given_voters], np.array([match for _, match in given_voters], np.int64)
    large, small = (grow(9, padded(rows), matches, np.array(given_factors), n) for n in (most, most - 1))
    for a, b in zip(large, small, strict=True):
        assert a[: most - 1].tolist() == b.tolist()
    assert (np.diff(large.logprob) <= 0).all()
    assert (large.parent[1:] < np.arange(1, len(large.parent))).all()
    assert len(set(paths(large))) == len(paths(large))


def test_a_longer_match_outweighs_many_short_ones():
    """Twelve places after the last token alone, and one after the last ten."""
    rows = [[5, 6]] + [[i % 4] for i in range(12)]
    branches = grow(9, padded(rows), np.array([10] + [1] * 12), np.ones(CELLS), 3)
    assert paths(branches) == [(5,), (5, 6)]
    assert branches.claim[1] == pytest.approx(100 / 112 * 10 / 11)
    assert branches.claim[2] == pytest.approx(11 / 12)
