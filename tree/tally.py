"""How often claims of one kind came true, and what a new claim of that kind is therefore worth.

A drafter's number for an edge, "the child follows its parent", is a claim. Claims are counted by cell (how deep,
how long the match, how large the number: the drafter's choice), and of a cell we learn a factor: what was accepted
of what was claimed. Inside a cell likelier edges so stay likelier. Only edges whose parent was accepted are counted,
as the others were not put to the test; the product along a path is then the chance that the whole path is accepted.

It begins with the drafter's own word, worth `PRIOR` accepted drafts, and forgets by halves.
"""

import numba
import numpy as np

PRIOR = 4.0  # accepted drafts that the drafter's own word counts for
MEMORY = 1024.0  # claims that a cell remembers, in effect
CERTAIN = 0.999  # nothing is likelier than this, so that a path's chance falls with its length
IMPOSSIBLE = 1e-6  # nor less likely: logarithms stay finite


class Tally:
    """Counts of `cells` kinds of claims. `accepted`, `claimed`, `seen`: fp64 [cells]."""

    def __init__(self, cells: int) -> None:
        self.seen, self.claimed, self.accepted = np.zeros((3, cells))

    @property
    def factors(self) -> np.ndarray:
        """[cells]: what to multiply a claim by."""
        return (self.accepted + PRIOR) / (self.claimed + PRIOR)

    def chance(self, claim: np.ndarray, cell: np.ndarray) -> np.ndarray:
        """Chance that the claims come true, elementwise; claim in 0 … 1, cell int."""
        return np.clip(claim * self.factors[cell], IMPOSSIBLE, CERTAIN)

    def learn(self, claim: np.ndarray, cell: np.ndarray, accepted: np.ndarray) -> None:
        """Outcomes [T]: claims fp64, cells int64, accepted bool."""
        _count(self.seen, self.claimed, self.accepted, claim, cell, accepted)


@numba.njit(cache=True)
def _count(seen, claimed, accepted, claim, cell, outcome):
    for i in range(len(cell)):
        kind = cell[i]
        seen[kind] += 1
        claimed[kind] += claim[i]
        accepted[kind] += outcome[i]
        if seen[kind] > MEMORY:
            seen[kind] *= 0.5
            claimed[kind] *= 0.5
            accepted[kind] *= 0.5


@numba.njit(cache=True)
def judged(tokens, parent, size, actual):
    """The nodes of one tree that the text has put to the test, and with what outcome.

    tokens, parent: [N] int64, the root in slot 0; size: slots in use; actual: [T] int64, what followed the root.
    -> (slots [K] int64, accepted [K] bool). A node is judged if its parent is on the text's path and a token of
    the text stands where it does.
    """
    reached = np.full(len(tokens), -1)  # steps along the text; -1 off its path
    reached[0] = 0
    slots, accepted, count = np.empty(size, np.int64), np.empty(size, np.bool_), 0
    for slot in range(1, size):
        step = reached[parent[slot]]
        if step < 0 or step == len(actual):
            continue
        slots[count], accepted[count] = slot, tokens[slot] == actual[step]
        if accepted[count]:
            reached[slot] = step + 1
        count += 1
    return slots[:count], accepted[:count]
