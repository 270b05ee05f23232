"""`index` and `branches` in plain Python: slow, and what the compiled ones are tested against."""

import math
from collections.abc import Sequence

from jetspec_sglang.tree.tally import CERTAIN, IMPOSSIBLE

from .branches import MATCHES, SHARES
from .index import CONTEXTS, LONGEST, NOTHING


def find(sequence: Sequence[int], capacity: int, context: Sequence[int]) -> list[tuple[int, int]]:
    """All (place, match) that `TokenIndex.find` chooses from, in its order.

    Only the last `capacity` tokens of `sequence` exist.
    """
    begin = max(0, len(sequence) - capacity)
    found = []
    for place in range(begin + 1, len(sequence)):
        match, most = 0, min(LONGEST, len(context), place - begin)
        while match < most and sequence[place - 1 - match] == context[-1 - match]:
            match += 1
        if match and sequence[place] != NOTHING:
            indexed = max(count for count in CONTEXTS.tolist() if count <= match)
            found.append((-indexed, -place, match))
    return [(-place, match) for _, place, match in sorted(found)]


def follow(sequence: Sequence[int], place: int, depth: int) -> list[int]:
    """What came after a place, as far as `depth` and the end of its text."""
    tokens = list(sequence)
    after: list[int] = []
    while len(after) < depth and tokens[place] != NOTHING:
        after.append(tokens[place])
        tokens.append(tokens[place])  # a loop goes on
        place += 1
    return after


def grow(
    after: Sequence[Sequence[int]], matches: Sequence[int], factors: Sequence[float], most: int
) -> list[tuple[tuple[int, ...], float, float, int]]:
    """(path, log-chance, claim, cell) of the drafts of `branches.grow`, best first; `most` counts the root."""
    votes: dict[tuple[int, ...], list[int]] = {}
    for tokens, match in zip(after, matches, strict=True):
        for step in range(len(tokens)):
            votes.setdefault(tuple(tokens[: step + 1]), []).append(min(LONGEST, match + step))
    weight = {path: sum(match**2 for match in of_path) for path, of_path in votes.items()}
    chance: dict[tuple[int, ...], float] = {(): 0.0}
    drafts = []
    for path, of_path in votes.items():
        share = weight[path] / sum(w for other, w in weight.items() if other[:-1] == path[:-1] and other)
        longest = max(of_path)
        cell = int((longest >= MATCHES).sum()) * (len(SHARES) + 1) + int((share >= SHARES).sum())
        claim = share * longest / (longest + 1)
        chance[path] = chance[path[:-1]] + math.log(min(max(claim * factors[cell], IMPOSSIBLE), CERTAIN))
        drafts.append((path, chance[path], claim, cell))
    return sorted(drafts, key=lambda draft: -draft[1])[: most - 1]
