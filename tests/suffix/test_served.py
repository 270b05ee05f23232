"""The drafter against the bookkeeping of a server: slots, rows of the slot table, requests that come, go and return."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jetspec_sglang.drafters.contract import CommittedTokens, RetrievalDrafter
from jetspec_sglang.drafters.no_head import NoHead
from jetspec_sglang.drafters.suffix.served import SuffixDrafter

ROWS, WIDTH, SLOTS = 3, 60, 200


class Server:
    """Three rows of a slot table, slots handed out at random, and what the texts really are."""

    def __init__(self, seed: int = 0, cache: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.table = torch.zeros(ROWS, WIDTH, dtype=torch.int32)
        pool = SimpleNamespace(get_key_buffer=lambda layer: torch.zeros(SLOTS, 1))
        runner = SimpleNamespace(
            token_to_kv_pool=pool,
            req_to_token_pool=SimpleNamespace(req_to_token=self.table),
            model_config=SimpleNamespace(context_len=WIDTH),
            device="cpu",
        )
        self.drafter = SuffixDrafter(
            head=NoHead("suffix", cache), depth=5, target_worker=SimpleNamespace(model_runner=runner), width=4
        )
        self.texts: list[list[int]] = [[] for _ in range(ROWS)]  # the anchor last, which has no slot yet
        self.rids = [f"first of {row}" for row in range(ROWS)]

    def commit(self, row: int, tokens: list[int], start: int) -> None:
        """Give `tokens` the places from `start` on in new slots, as a prefill or a round does."""
        free = np.setdiff1d(np.arange(1, SLOTS), self.table.numpy())
        slots = torch.from_numpy(self.rng.choice(free, len(tokens), replace=False))
        self.table[row, start : start + len(tokens)] = slots.to(torch.int32)
        unused = torch.zeros_like(slots)
        taps = torch.empty(len(tokens), 0)
        self.drafter.append_context(CommittedTokens(taps, slots, unused, torch.tensor(tokens), unused))

    def grow(self, row: int, count: int) -> None:
        """A round that commits `count` tokens, or the first one after a prefill of `count`."""
        text, new = self.texts[row], self.rng.integers(0, 4, count + (not self.texts[row])).tolist()
        known = max(0, len(text) - 1)
        text += new
        self.commit(row, text[known:-1], known)

    def restart(self, row: int, keep: int, rid: str) -> None:
        """Another text in the row, with the old one's beginning in other slots."""
        self.texts[row] = self.texts[row][:keep] + self.rng.integers(0, 4, 3).tolist()
        self.rids[row] = rid
        self.commit(row, self.texts[row][:-1], 0)

    def branches(self, rows: list[int], budgets: list[int]):
        batch = SimpleNamespace(
            reqs=[SimpleNamespace(rid=self.rids[row], origin_input_ids=[1], output_ids=[2]) for row in rows],
            req_pool_indices=torch.tensor(rows),
            seq_lens=torch.tensor([len(self.texts[row]) - 1 for row in rows]),
        )
        anchors = torch.tensor([self.texts[row][-1] for row in rows])
        tree = self.drafter.branches(anchors, batch, budgets, [5] * len(rows), [False] * len(rows))
        tree.validate()
        assert tree.tokens[:, 0].tolist() == anchors.tolist()
        return tree

    def known(self, row: int) -> list[int]:
        return self.drafter.texts._running[self.rids[row]].index.last(WIDTH).tolist()


steps = st.lists(
    st.tuples(
        st.integers(0, ROWS - 1),
        st.sampled_from(["grow", "grow", "draft", "retract", "replace"]),
        st.integers(1, 4),
    ),
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(steps, st.integers(0, 3))
def test_the_text_is_always_that_of_the_slots(sequence, seed):
    """Rounds with and without drafts, requests that lose and rewrite their last tokens, and others in their rows."""
    server = Server(seed)
    for row in range(ROWS):
        server.grow(row, 3)
    for row, what, count in sequence:
        if what == "grow" and len(server.texts[row]) < WIDTH - 5:
            server.grow(row, count)
        elif what == "retract":
            server.restart(row, max(0, len(server.texts[row]) - count), server.rids[row])
        elif what == "replace":
            server.restart(row, count, f"{row}, {count} of {len(server.texts[row])}")
        elif what == "draft":
            rows = [other for other in range(ROWS) if other != row or count > 1]
            budgets = [1 if (other + count) % 3 == 0 else 6 for other in rows]
            tree = server.branches(rows, budgets)
            for other, budget, size in zip(rows, budgets, tree.size.tolist(), strict=True):
                assert size <= budget
                if budget > 1:
                    assert server.known(other)[-1] == server.texts[other][-1]
    server.branches(list(range(ROWS)), [6] * ROWS)
    for row in range(ROWS):
        # A text that lost as much as it gained, and ends in the same token, may be taken for the old one.
        assert len(server.known(row)) == len(server.texts[row])


def test_a_text_is_read_piece_by_piece():
    server = Server()
    server.grow(0, 10)
    server.branches([0], [6])
    assert server.known(0) == server.texts[0]
    assert server.drafter.grown[0].tolist() == server.texts[0]
    server.grow(0, 3)
    server.branches([0], [6])
    assert server.known(0) == server.texts[0]
    assert server.drafter.grown[0].tolist() == server.texts[0][-3:]


def test_a_text_that_became_shorter_or_other_is_read_again():
    server = Server()
    server.grow(0, 10)
    server.branches([0], [6])
    for keep in (4, 6):
        server.restart(0, keep, server.rids[0])
        server.branches([0], [6])
        assert server.known(0) == server.texts[0]


def test_a_round_without_drafts_leaves_the_text_for_later():
    server = Server()
    server.grow(0, 10)
    tree = server.branches([0], [1])
    assert tree.budget == 1
    assert server.drafter.texts.report()["running_texts"] == 0
    server.grow(0, 3)
    server.branches([0], [6])
    assert server.known(0) == server.texts[0]


def test_dry_runs_get_as_many_slots_as_they_ask_for():
    batch = SimpleNamespace(reqs=[])
    tree = Server().drafter.branches(torch.zeros(2, dtype=torch.int64), batch, [8, 8], [5, 5], [False, False])
    tree.validate()
    assert (tree.budget, tree.size.tolist()) == (8, [1, 1])


def test_tokens_can_be_written_after_a_dry_run():
    """Rounds are in inference mode and prefills are not; the first of them makes the table."""
    server = Server()
    with torch.inference_mode():
        assert server.drafter.tokens.is_inference()
    server.grow(0, 10)
    server.branches([0], [6])
    assert server.known(0) == server.texts[0]


def test_an_answer_is_remembered_when_its_request_ends():
    server = Server(cache=100)
    server.grow(0, 10)
    server.branches([0], [6])
    server.drafter.finished(server.rids[0])
    server.drafter.finished("never seen")
    told = server.drafter.report()
    assert (told["cache_tokens"], told["running_texts"]) == (3, 0)  # prompt's end, answer, separator
    assert told["bytes"] > SLOTS * 4


def test_it_is_a_drafter_without_a_model():
    drafter = Server().drafter
    assert isinstance(drafter, RetrievalDrafter)
    assert (drafter.worker, drafter.runner, drafter.slots(5)) == (None, None, 0)
    spec = drafter.spec
    assert (spec.name, spec.conditioning, spec.forwards_per_round, spec.target_layer_ids) == (
        "suffix",
        "retrieved",
        0,
        (),
    )


def test_no_head_reads_and_keeps_nothing():
    head = NoHead("suffix")
    assert (head.taps(30), head.cached_layers, head.slots(7), head.rows(7)) == ((), 0, 0, 0)
    with pytest.raises(AttributeError):
        head.cache_tokens = 5
