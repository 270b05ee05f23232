"""Requests side by side: each drafted for from its own text and finished ones, within bounds."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jetspec_sglang.drafters.suffix.texts import LEAD, Texts

PASSAGE = np.arange(100, 140)


def chain(branches) -> list[int]:
    """The tokens of the likeliest path."""
    path, node = [], 0
    while (children := np.flatnonzero(branches.parent == node)).size:
        node = int(children[0])
        path.append(int(branches.tokens[node]))
    return path


def test_a_text_is_drafted_for_from_itself():
    texts = Texts(1000, cache=0)
    got = texts.draft("a", np.concatenate([PASSAGE, [1, 2, 3], PASSAGE[:5]]), most=16, depth=9)
    assert chain(got) == PASSAGE[5:14].tolist()
    got = texts.draft("a", PASSAGE[5:9], most=16, depth=9)
    assert chain(got) == PASSAGE[9:18].tolist()
    assert texts.known("a") == (52, PASSAGE[8])


def test_the_root_is_the_last_token_and_the_budget_is_kept():
    texts = Texts(1000, cache=0)
    got = texts.draft("a", np.array([5, 6, 5, 7, 5]), most=2, depth=9)
    assert (got.tokens[0], len(got.tokens)) == (5, 2)
    assert len(texts.draft("b", np.array([5]), most=16, depth=9).tokens) == 1  # nothing to go by


def test_running_texts_do_not_know_each_other():
    texts = Texts(1000, cache=1000)
    texts.draft("a", PASSAGE, most=16, depth=9)
    assert chain(texts.draft("b", PASSAGE[:5], most=16, depth=9)) == []


def test_a_finished_text_helps_others_only_if_there_is_a_cache():
    for cache, want in ((1000, PASSAGE[5:14].tolist()), (0, [])):
        texts = Texts(1000, cache)
        texts.draft("a", PASSAGE[:20], most=16, depth=9)
        texts.finish("a", PASSAGE[:2], PASSAGE[2:])
        assert chain(texts.draft("b", PASSAGE[:5], most=16, depth=9)) == want
        assert texts.report()["running_texts"] == 1


def test_a_draft_that_is_shown_comes_from_its_own_text():
    texts = Texts(1000, cache=1000)
    texts.finish("a", PASSAGE[:2], PASSAGE[2:])
    assert chain(texts.draft("b", PASSAGE[:5], most=16, depth=9, alone=True)) == []
    assert chain(texts.draft("b", np.array([7, 8, 7]), most=16, depth=1, alone=True)) == [8]
    assert chain(texts.draft("b", PASSAGE[:5], most=16, depth=9)) != []


def test_finished_texts_can_be_forgotten():
    texts = Texts(1000, cache=1000)
    texts.finish("a", PASSAGE[:2], PASSAGE[2:])
    texts.clear()
    assert chain(texts.draft("b", PASSAGE[:5], most=16, depth=9)) == []
    assert texts.report()["cache_tokens"] == 0


def test_no_draft_reaches_from_one_finished_text_into_the_next():
    texts = Texts(1000, cache=1000)
    texts.finish("a", np.array([7]), np.array([1, 2]))
    texts.finish("b", np.array([3]), np.array([4, 5]))
    assert chain(texts.draft("c", np.array([1]), most=16, depth=9)) == [2]


def test_prompts_are_not_kept_but_for_their_ends():
    texts = Texts(1000, cache=1000)
    texts.finish("a", PASSAGE, np.array([1, 2]))
    assert chain(texts.draft("b", PASSAGE[:5], most=16, depth=9)) == []
    assert texts.report()["cache_tokens"] == LEAD + 2 + 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60), st.booleans()), max_size=30))
def test_memory_is_bounded_and_reported(steps):
    """Requests 0 to 3 grow, finish and come again; never more than the running texts and the cache is held."""
    texts, lengths, rng = Texts(500, cache=100), dict.fromkeys(range(4), 0), np.random.default_rng(0)
    for rid, count, ends in steps:
        texts.draft(str(rid), rng.integers(0, 5, count), most=8, depth=4)
        lengths[rid] += count
        if ends:
            texts.finish(str(rid), rng.integers(0, 5, 20), rng.integers(0, 5, count))
            lengths[rid] = 0
        told = texts.report()
        running = [length for length in lengths.values() if length]
        assert told["running_texts"] == len(running)
        assert told["running_tokens"] == sum(min(length, 500) for length in running)
        assert told["cache_tokens"] <= told["cache_capacity"] == 100
        assert told["bytes"] <= (len(running) + 1) * 500 * 130 + 20_000
    texts.keep_only({"0"})
    assert texts.report()["running_texts"] == bool(lengths[0])


def test_it_learns_from_what_the_text_becomes():
    """A text in which nothing ever comes true again."""
    rng = np.random.default_rng(0)
    texts = Texts(100_000, cache=0)
    text = rng.integers(0, 30, 3000)
    first = last = None
    for start in range(0, len(text), 2):
        got = texts.draft("a", text[start : start + 2], most=8, depth=4)
        if len(got.tokens) > 1:
            first = first if first is not None else np.exp(got.logprob[1])
            last = np.exp(got.logprob[1:]).sum()
    told = texts.report()
    assert told["judged"] > 1000
    assert told["confirmed"] / told["judged"] < 0.1
    assert first > 0.3
    assert last < 0.8


def test_a_text_that_repeats_itself_becomes_certain():
    texts = Texts(100_000, cache=0)
    for _ in range(50):
        got = texts.draft("a", PASSAGE, most=16, depth=15)
    assert chain(got) == PASSAGE[:15].tolist()
    assert np.exp(got.logprob[-1]) > 0.9


def test_the_same_requests_give_the_same_trees():
    def run() -> list[list[float]]:
        texts, rng = Texts(1000, cache=50), np.random.default_rng(3)
        trees = [texts.draft(str(i % 3), rng.integers(0, 4, 5), 8, 4) for i in range(40)]
        return [field.tolist() for tree in trees for field in tree]

    assert run() == run()
