"""Trees to draw, drawn at random."""

from hypothesis import strategies as st

from jetspec_sglang.tree.draw import DrawnRound

# 0 ── 1 ── 3 ── 5        path 0 1 4, bonus 99
# │    └─── 4
# └─── 2
SMALL = DrawnRound(
    tokens=(10, 11, 12, 13, 14, 15),
    parent=(-1, 0, 0, 1, 1, 3),
    depth=(0, 1, 1, 2, 2, 3),
    logprob=(0.0, -0.7, -1.2, -1.5, -2.0, -9.0),
    path=(0, 1, 4),
    committed=(11, 14, 99),
)


def drawn(parent: list[int], accepted_leaf: int) -> DrawnRound:
    """A tree with these parents, in which the path to node `accepted_leaf` is accepted."""
    depth: list[int] = []
    for above in parent:
        depth.append(depth[above] + 1 if above >= 0 else 0)
    path = [accepted_leaf]
    while parent[path[0]] >= 0:
        path.insert(0, parent[path[0]])
    return DrawnRound(
        tokens=tuple(range(100, 100 + len(parent))),
        parent=tuple(parent),
        depth=tuple(depth),
        logprob=tuple(-0.4 * slot for slot in range(len(parent))),
        path=tuple(path),
        committed=(*(100 + slot for slot in path[1:]), 7),
    )


@st.composite
def drawn_rounds(draw: st.DrawFn, most: int = 40) -> DrawnRound:
    size = draw(st.integers(1, most))
    parent = [-1, *(draw(st.integers(0, slot - 1)) for slot in range(1, size))]
    return drawn(parent, draw(st.integers(0, size - 1)))
