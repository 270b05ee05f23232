"""The index finds what a search of the whole sequence finds, whatever was appended and forgotten."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetspec_sglang.drafters.suffix import reference
from jetspec_sglang.drafters.suffix.index import CONTEXTS, LONGEST, NOTHING, SMALLEST, VISITS, TokenIndex

tokens = st.integers(NOTHING, 3)  # few different ones, so that matches are long
pieces = st.lists(st.lists(tokens, max_size=40), max_size=12)


def filled(parts, capacity: int) -> tuple[TokenIndex, list[int]]:
    index = TokenIndex(capacity)
    for part in parts:
        index.extend(np.array(part, np.int64))
    return index, [token for part in parts for token in part]


def pairs(found) -> list[tuple[int, int]]:
    return list(zip(*(column.tolist() for column in found), strict=True))


@settings(max_examples=200, deadline=None)  # the first call compiles
@given(pieces, st.integers(1, 200), st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_it_finds_what_a_search_finds(parts, capacity, context):
    index, sequence = filled(parts, capacity)
    want = reference.find(sequence, capacity, context)
    assert index.held == min(len(sequence), capacity)
    got = pairs(index.find(np.array(context, np.int32), 1000))
    if len(sequence) <= VISITS:
        assert got == want
    else:  # places that are not among the last few of their context may be missed
        assert set(got) <= set(want)
        assert got == [pair for pair in want if pair in set(got)]
        assert got[:1] == want[:1] or not got


@settings(max_examples=100, deadline=None)
@given(pieces, st.integers(1, 200), st.integers(1, 5))
def test_the_first_ones_are_kept_where_only_some_are_wanted(parts, capacity, most):
    index, sequence = filled(parts, capacity)
    context = np.array(sequence[-LONGEST:] or [0], np.int32)
    assert pairs(index.find(context, most)) == pairs(index.find(context, 1000))[:most]


@settings(max_examples=100, deadline=None)
@given(pieces, st.integers(1, 9))
def test_what_followed_is_read_up_to_a_texts_end_and_loops_go_on(parts, depth):
    index, sequence = filled(parts, 10_000)
    places = np.arange(len(sequence))
    for place, row in zip(places, index.follow(places, depth).tolist(), strict=True):
        want = reference.follow(sequence, int(place), depth)
        assert row == want + [NOTHING] * (depth - len(want))


def test_a_long_match_is_found_behind_many_short_ones():
    rng = np.random.default_rng(0)
    passage = rng.integers(100, 200, 40)
    noise = np.concatenate([[passage[-1], token] for token in rng.integers(200, 300, 5 * VISITS)])
    index = TokenIndex(10_000)
    index.extend(np.concatenate([passage, [7], noise, passage]))
    places, matches = index.find(index.last(LONGEST), 32)
    assert (places[0], matches[0]) == (40, LONGEST)


def test_appending_piece_by_piece_is_appending_at_once():
    rng = np.random.default_rng(1)
    sequence = rng.integers(0, 4, 3 * SMALLEST)
    whole, grown = TokenIndex(2 * SMALLEST), TokenIndex(2 * SMALLEST)
    whole.extend(sequence)
    for token in sequence:
        grown.extend(np.array([token]))
    context = whole.last(LONGEST)
    assert context.tolist() == grown.last(LONGEST).tolist() == sequence[-LONGEST:].tolist()
    assert pairs(whole.find(context, 1000)) == pairs(grown.find(context, 1000))


def test_memory_is_bounded_and_starts_small():
    index = TokenIndex(1000)
    assert index.nbytes < 10_000
    for _ in range(50):
        index.extend(np.arange(100))
    assert index.held == 1000
    assert index.nbytes == 1000 * (4 + 8 * len(CONTEXTS)) + 1024 * 8 * len(CONTEXTS)


def test_an_index_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        TokenIndex(0)
