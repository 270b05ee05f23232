"""What the nodes of a level see, in the layouts that the attention backends take."""

import pytest
import torch

from jetspec_sglang.drafters.sglang_models import level_input
from jetspec_sglang.drafters.sglang_models.level_input import DraftLevelInput
from jetspec_sglang.drafters.sglang_models.spec_block import own_blocks


def two_requests(monkeypatch, on_cpu: bool, first_is_seen: bool = False) -> DraftLevelInput:
    """Prefixes of 3 and 1 committed tokens; 2 new nodes each, behind 3 drafted ones."""
    visible = torch.tensor(
        [[[1, 0, 1, 1, 0], [1, 1, 0, 0, 1]], [[1, 1, 0, 1, 0], [1, 1, 0, 0, 1]]], dtype=torch.bool
    )
    if not on_cpu:  # the layout of other devices, computed here
        monkeypatch.setattr(level_input, "on_cpu", lambda mask: False)
    return DraftLevelInput.of(
        torch.zeros(2, 2, dtype=torch.int64),
        torch.zeros(2, 2, 8),
        torch.zeros(2, 2, dtype=torch.int64),
        visible,
        torch.tensor([3, 1]),
        4,
        first_is_seen=first_is_seen,
    )


ROWS = [
    [[0, 1, 1, 1, 0, 1, 1, 0], [0, 1, 1, 1, 1, 0, 0, 1]],
    [[0, 1, 1, 0, 1, 0], [0, 1, 1, 0, 0, 1]],
]


def test_all_of_the_prefix_is_seen_but_its_first_entry(monkeypatch):
    made = two_requests(monkeypatch, on_cpu=True)
    assert [mask.int().tolist() for mask in made.tree_mask] == ROWS
    assert made.custom_mask is None
    assert (made.draft_token_num, made.hidden_states.shape) == (2, (4, 8))


@pytest.mark.parametrize("on_cpu", [True, False])
def test_a_head_that_has_the_first_entry_sees_it(monkeypatch, on_cpu):
    made = two_requests(monkeypatch, on_cpu, first_is_seen=True)
    rows = made.tree_mask if on_cpu else made.custom_mask.split((16, 12))
    whole = [[1, *row[1:]] for request in ROWS for row in request]
    assert [row for mask in rows for row in mask.int().view(2, -1).tolist()] == whole


def test_the_flat_mask_is_the_same(monkeypatch):
    made = two_requests(monkeypatch, on_cpu=False)
    assert made.custom_mask.int().tolist() == [bit for rows in ROWS for row in rows for bit in row]
    assert made.tree_mask is None


def test_a_block_sees_itself_up_to_each_row():
    past = torch.ones(3, 3, dtype=torch.bool).tril()
    assert torch.equal(own_blocks(4, 3, torch.device("cpu")), torch.block_diag(past, past, past, past))
