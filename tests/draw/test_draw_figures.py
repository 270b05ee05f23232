"""Pictures, measured: no label leaves its node, no node touches another, nothing leaves the page."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import FancyBboxPatch
from rounds import SMALL, drawn, drawn_rounds

from jetspec_sglang.tree.draw import label
from jetspec_sglang.tree.draw_counts import NodeCounts
from jetspec_sglang.tree.draw_figure import shown, tree_figure
from jetspec_sglang.tree.draw_heatmap import heatmap_figure


def boxes_and_texts(figure):
    """Extents in pixels: of nodes (legend included), and of all texts."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    axes = figure.axes[0]
    boxes = [p.get_window_extent(renderer) for p in axes.patches if isinstance(p, FancyBboxPatch)]
    return boxes, {text.get_text(): text.get_window_extent(renderer) for text in axes.texts}


def overlapping(one, other) -> bool:
    return one.x0 < other.x1 and other.x0 < one.x1 and one.y0 < other.y1 and other.y0 < one.y1


def inside(inner, outer, slack: float = 1) -> bool:
    return (
        outer.x0 - slack <= inner.x0
        and inner.x1 <= outer.x1 + slack
        and outer.y0 - slack <= inner.y0
        and inner.y1 <= outer.y1 + slack
    )


@settings(max_examples=10, deadline=None)
@given(drawn_rounds(64))
def test_nothing_overlaps(round_):
    # Distinct labels of all lengths, so that each text is found in its own box.
    labels = [label("W$_^{" * (slot % 4) + str(slot), slot) for slot in range(round_.size)]
    figure = tree_figure(round_, labels, "the bonus", "a title")
    boxes, texts = boxes_and_texts(figure)
    assert len(boxes) == round_.size + 1 + 3  # nodes, bonus, legend
    assert not any(overlapping(*pair) for pair in combinations(boxes, 2))
    assert all(inside(extent, figure.bbox) for extent in (*boxes, *texts.values()))
    notes = {"a title", "%: path probability under the drafter"}
    assert all(any(inside(texts[t], box) for box in boxes) for t in texts if t not in notes)
    assert not any(overlapping(texts[note], box) for note in notes for box in boxes)


def test_the_accepted_path_is_the_thick_one():
    figure = tree_figure(SMALL, list("abcdef"), "x", "")
    thick = [line for line in figure.axes[0].lines if line.get_linewidth() == 2]
    assert len(thick) == SMALL.accepted
    assert all(line.zorder > 1 for line in thick)
    assert len(figure.axes[0].lines) == SMALL.size  # an edge to each node but the root, and one to the bonus


def test_characters_that_the_font_lacks_become_boxes():
    assert shown("a日␣…") == "a□␣…"


def test_counts_by_depth_and_rank():
    counts = NodeCounts.of([SMALL, drawn([-1, 0, 0, 0], 3), drawn([-1], 0)])
    assert counts.rounds == 3
    assert counts.drafted.tolist() == [[2, 2, 1], [1, 1, 0], [1, 0, 0]]
    assert counts.accepted.tolist() == [[1, 0, 1], [0, 1, 0], [0, 0, 0]]
    np.testing.assert_array_equal(counts.acceptance, [[0.5, 0, 1], [0, 1, np.nan], [0, np.nan, np.nan]])


@settings(max_examples=30, deadline=None)
@given(drawn_rounds())
def test_counts_add_up(round_):
    counts = NodeCounts.of([round_] * 2)
    assert counts.drafted.sum() == 2 * (round_.size - 1)
    assert counts.accepted.sum() == 2 * round_.accepted
    assert (counts.accepted <= counts.drafted).all()


def test_heatmap_writes_what_it_counted():
    figure = heatmap_figure([SMALL, drawn([-1, 0, 0, 0], 3)], "two rounds")
    drafted, accepted = ([text.get_text() for text in axes.texts] for axes in figure.axes)
    assert drafted == ["1.0", "1.0", ".50", ".50", ".50", ".50"]
    assert accepted == [".50", "0", "1.0", "0", "1.0", "0"]


def test_nothing_to_map():
    with pytest.raises(ValueError, match="no round drafted"):
        heatmap_figure([drawn([-1], 0)], "")
