"""What the nodes of a level see, in the layouts that the attention backends take."""

import torch

from jetspec_sglang.drafters.sglang_models import level_input
from jetspec_sglang.drafters.sglang_models.level_input import DraftLevelInput


def two_requests(monkeypatch, on_cpu: bool) -> DraftLevelInput:
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


def test_the_flat_mask_is_the_same(monkeypatch):
    made = two_requests(monkeypatch, on_cpu=False)
    assert made.custom_mask.int().tolist() == [bit for rows in ROWS for row in rows for bit in row]
    assert made.tree_mask is None
