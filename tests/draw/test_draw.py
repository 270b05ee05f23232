"""A round on the host: what it accepts as one, its families, rows, labels, text."""

import io
from dataclasses import asdict, replace

import pytest
import torch
from hypothesis import given, settings
from rich.console import Console
from rounds import SMALL, drawn_rounds

from jetspec_sglang.tree import DraftProposal, build_tree, follow
from jetspec_sglang.tree.draw import DrawnRound, label, percent, rows
from jetspec_sglang.tree.draw_text import text_tree


def test_families_ranks_and_outcome():
    assert SMALL.children == ((1, 2), (3, 4), (), (5,), (), ())
    assert SMALL.rank == (0, 0, 1, 0, 1, 0)
    assert (SMALL.size, SMALL.accepted, SMALL.bonus) == (6, 2, 99)
    assert replace(SMALL, committed=(11, 14)).bonus is None


def test_a_trace_row_as_the_server_shows_it():
    row = {name: list(values) for name, values in asdict(SMALL).items()}
    assert DrawnRound.of_trace({**row, "rid": "x", "round": 3}) == SMALL
    with pytest.raises(ValueError, match="no round of a trace"):
        DrawnRound.of_trace({"tokens": [1]})


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens": ()},
        {"logprob": (0.0,)},
        {"parent": (-1, 0, 0, 1, 1, 5)},
        {"parent": (-1, 0, 0, 1, 1, -1)},
        {"depth": (0, 1, 1, 2, 2, 2)},
        {"path": ()},
        {"path": (1, 4)},
        {"path": (0, 4)},
        {"path": (0, 6)},
    ],
)
def test_lists_that_are_no_tree_or_no_path(wrong):
    with pytest.raises(ValueError, match=r"tree|node|path"):
        replace(SMALL, **wrong)


def test_of_a_built_and_verified_batch():
    logprobs = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    logprobs = logprobs.sort(descending=True).values
    tree = build_tree(DraftProposal(torch.arange(24).view(2, 3, 4), logprobs), torch.tensor([90, 91]), 9)
    first = int((tree.parent[1] == 0).nonzero()[1])  # the second child of the root
    choice = torch.full((2, 9), 77)
    choice[1, 0] = tree.tokens[1, first]
    found = DrawnRound.of_tree(tree, follow(tree, choice, 3), request=1)
    assert found.tokens == tuple(tree.tokens[1].tolist())
    assert (found.path, found.committed, found.bonus) == ((0, first), (found.tokens[first], 77), 77)
    assert found.rank[first] == 1


@settings(max_examples=100, deadline=None)
@given(drawn_rounds())
def test_no_two_nodes_share_a_place(drawn):
    row = rows(drawn.children)
    assert len(set(zip(drawn.depth, row, strict=True))) == drawn.size
    leaves = [slot for slot, family in enumerate(drawn.children) if not family]
    assert sorted(row[leaf] for leaf in leaves) == list(range(len(leaves)))
    assert all(row[family[0]] == row[slot] for slot, family in enumerate(drawn.children) if family)


def test_rows_of_a_small_tree():
    assert rows(SMALL.children) == [0, 0, 2, 0, 1, 0]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (" the", "␣the"),
        ("\n\n", "\\n\\n"),
        ("", "‹5›"),
        ("<|im_start|>assistant", "<|im_st…istant"),
        ("\x00a", "�a"),
        ("日本", "日本"),
    ],
)
def test_labels_show_blanks_and_stay_short(text, shown):
    assert label(text, 5) == shown


def test_percent():
    shown = [percent(p) for p in (1, 0.996, 0.424, 0.0999, 0.042, 0.001, 0.0009)]
    assert shown == ["100%", "100%", "42%", "10%", "4.2%", "0.1%", "<0.1%"]


def printed(drawn: DrawnRound, **console) -> str:
    screen = Console(file=io.StringIO(), width=80, **console)
    screen.print(text_tree(drawn, [f"t{token}" for token in drawn.tokens], "t99"))
    return screen.file.getvalue()


def test_text_marks_the_path_without_colours():
    assert printed(SMALL).splitlines() == [
        "● t10  100%",
        "├── ● t11  50%",
        "│   ├── ○ t13  22%",
        "│   │   └── ○ t15  <0.1%",
        "│   └── ● t14  14%",
        "│       └── ★ t99",
        "└── ○ t12  30%",
    ]


def test_text_has_colours_on_a_terminal():
    assert "\x1b[" in printed(SMALL, force_terminal=True, color_system="standard")
