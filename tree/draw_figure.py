"""A token tree as a picture: depths from left to right, the most probable path of a node straight on.

matplotlib is needed, and only here and in `draw_heatmap`; import these modules where a picture is asked for.
"""

from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.patches import FancyBboxPatch

from .draw import DrawnRound, percent, rows

FONT, SIZE = "DejaVu Sans Mono", 8  # matplotlib brings this font; one width for all characters
CHARACTER = 0.63 * SIZE / 72  # inches; hinting rounds up to whole pixels
ROW, BOX = 0.26, 0.19  # inches: distance of rows, height of a node
PADDING, GAP = 0.06, 0.34  # inches: inside a node, between columns
MARGIN, HEAD, FOOT = 0.15, 0.35, 0.3
LEAST_WIDTH = 6.6  # the legend's
DASHED = (0, (2, 1.5))
GREEN, GREY, AMBER = "#2b8a57", "#9aa0a6", "#b06a00"


def tree_figure(drawn: DrawnRound, labels: Sequence[str], bonus: str, title: str) -> Figure:
    """The tree of one round. It grows with the tree: every leaf has a row, every depth a column.

    Args: as `draw_text.text_tree`.
    """
    children = [list(family) for family in drawn.children]
    texts = [
        f"{shown(text)} {percent(drawn.probability(slot))}" if slot else shown(text)
        for slot, text in enumerate(labels)
    ]
    depth = list(drawn.depth)
    if drawn.bonus is not None:  # drawn like a last child of the last accepted node
        children[drawn.path[-1]].append(drawn.size)
        children.append([])
        texts.append(shown(bonus))
        depth.append(drawn.accepted + 1)
    row = rows(children)

    columns = [0.0] * (max(depth) + 1)
    for level, text in zip(depth, texts, strict=True):
        columns[level] = max(columns[level], len(text) * CHARACTER + 2 * PADDING)
    left = [MARGIN + sum(columns[:level]) + GAP * level for level in range(len(columns))]
    width = max(left[-1] + columns[-1] + MARGIN, LEAST_WIDTH)
    height = HEAD + (max(row) + 1) * ROW + FOOT

    figure = Figure(figsize=(width, height), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    axes.text(MARGIN, HEAD / 2, title, size=SIZE + 1, va="center", weight="bold", parse_math=False)
    on_path = set(drawn.path)

    def middle(node: int) -> float:
        return HEAD + (row[node] + 0.5) * ROW

    for node, family in enumerate(children):
        right = left[depth[node]] + len(texts[node]) * CHARACTER + 2 * PADDING
        for child in family:
            style: dict[str, Any] = (
                {"color": GREEN, "lw": 2, "zorder": 2}
                if child in on_path
                else {"color": GREY, "lw": 0.8, "zorder": 1}
            )
            if child == drawn.size:
                style = {"color": AMBER, "lw": 1.2, "ls": DASHED, "zorder": 2}
            end = left[depth[child]]
            bend = end - GAP / 2
            xs, ys = [right, bend, bend, end], [middle(node)] * 2 + [middle(child)] * 2
            axes.plot(xs, ys, solid_joinstyle="round", **style)
    for node, text in enumerate(texts):
        probability = 1.0 if node == drawn.size else drawn.probability(node)
        kind = "bonus" if node == drawn.size else "accepted" if node in on_path else "drafted"
        _box(axes, left[depth[node]], middle(node), text, kind, probability)
    _legend(axes, height - FOOT / 2)
    return figure


def _box(axes: Axes, x: float, y: float, text: str, kind: str, probability: float) -> None:
    """A node; drafted ones are the darker the more probable their path is."""
    blue = matplotlib.colormaps["Blues"](0.05 + 0.4 * probability)
    face = {"accepted": GREEN, "bonus": "white", "drafted": blue}[kind]
    edge = {"accepted": GREEN, "bonus": AMBER, "drafted": GREY}[kind]
    ink = {"accepted": "white", "bonus": AMBER, "drafted": "#1c2b3a"}[kind]
    width = len(text) * CHARACTER + 2 * PADDING
    shape = FancyBboxPatch(
        (x, y - BOX / 2),
        width,
        BOX,
        boxstyle="round,pad=0,rounding_size=0.05",
        fc=face,
        ec=edge,
        lw=0.8,
        ls=DASHED if kind == "bonus" else "-",
        zorder=3,
    )
    axes.add_patch(shape)
    axes.text(
        x + PADDING,
        y,
        text,
        size=SIZE,
        family=FONT,
        color=ink,
        va="center_baseline",
        zorder=4,
        parse_math=False,
    )


def _legend(axes: Axes, y: float) -> None:
    x = MARGIN
    for text, kind in (
        ("accepted", "accepted"),
        ("not taken", "drafted"),
        ("bonus, the target's own", "bonus"),
    ):
        _box(axes, x, y, text, kind, 0.2)
        x += len(text) * CHARACTER + 2 * PADDING + 0.12
    note = "%: path probability under the drafter"
    axes.text(x, y, note, size=SIZE, family=FONT, color="#1c2b3a", va="center_baseline")


def shown(text: str) -> str:
    """`text` with a box for every character that the font lacks."""
    known = get_font(findfont(FontProperties(family=FONT))).get_charmap()
    return "".join(character if ord(character) in known else "□" for character in text)
