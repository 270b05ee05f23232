"""A token tree as text for a terminal, with colours where it has any."""

from collections.abc import Sequence

from rich.text import Text
from rich.tree import Tree

from .draw import DrawnRound, percent

ACCEPTED, REJECTED, BONUS = "●", "○", "★"
LEGEND = (
    f"{ACCEPTED} accepted   {REJECTED} not taken   {BONUS} bonus: the target's own token   "
    "%: path probability under the drafter"
)


def text_tree(drawn: DrawnRound, labels: Sequence[str], bonus: str) -> Tree:
    """One line a node: its mark, its token, the probability of its path; siblings best first.

    Args:
        labels: text of each node, in slot order.
        bonus: text of the bonus token, drawn below the last accepted node.
    """
    on_path = set(drawn.path)

    def line(slot: int) -> Text:
        taken = slot in on_path
        mark, style = (ACCEPTED, "bold green") if taken else (REJECTED, "dim")
        return Text(f"{mark} {labels[slot]}  {percent(drawn.probability(slot))}", style=style)

    root = Tree(line(0), guide_style="dim")
    branches = {0: root}
    # Parents come before children, and siblings best first, so slots in order build the tree.
    for slot in range(1, drawn.size):
        branches[slot] = branches[drawn.parent[slot]].add(line(slot))
    if drawn.bonus is not None:
        branches[drawn.path[-1]].add(Text(f"{BONUS} {bonus}", style="bold yellow"))
    return root
