"""Where in a sequence the same tokens stood before: hash chains, as compressors keep them.

For contexts of 1, 2, 4, … tokens there is a table from a context's hash to the last place behind one, and from
each place a link to the place before with the same hash. Extending by a token writes five numbers, the oldest
tokens fall off by being overwritten, and the longest match is looked for from the longest context down. A suffix
automaton would name the longest match at once, but can neither forget its oldest text nor keep its counts without
walking all suffixes of each new token; and of the places it counts, the last few dozen say all that is used here.

`reference` says in plain Python what is found.
"""

import numba
import numpy as np

CONTEXTS = np.array([1, 2, 4, 8, 16])  # tokens; what is indexed
LONGEST = 32  # tokens; matches are not measured further
VISITS = 64  # places of a context that are looked at, the last ones
NOTHING = -1  # a token that equals none: it separates texts
SMALLEST = 64  # tokens of room at first


class TokenIndex:
    """A sequence of tokens, of which the last `capacity` are kept and can be searched.

    Places are counted from the sequence's beginning: place p is in front of token p. `NOTHING` in the sequence
    ends a text: no match reaches over it.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"an index of {capacity} tokens holds nothing; give it at least 1")
        self.capacity = capacity
        self.length = 0
        self._allocate(min(SMALLEST, capacity))

    def _allocate(self, size: int) -> None:
        table = 1 << (size - 1).bit_length()
        self.tokens = np.full(size, NOTHING, np.int32)
        self.links = np.full((len(CONTEXTS), size), -1, np.int64)
        self.heads = np.full((len(CONTEXTS), table), -1, np.int64)

    @property
    def nbytes(self) -> int:
        return self.tokens.nbytes + self.links.nbytes + self.heads.nbytes

    @property
    def held(self) -> int:
        """Tokens in memory."""
        return min(self.length, len(self.tokens))

    def extend(self, tokens: np.ndarray) -> None:
        """Append `tokens` [T] of any integer type; amortised O(1) a token."""
        tokens = np.ascontiguousarray(tokens, np.int32)
        size, wanted = len(self.tokens), self.length + len(tokens)
        if wanted > size and size < self.capacity:
            held = self.tokens[: self.length]  # nothing has fallen off before the index has its full size
            while size < min(wanted, self.capacity):
                size = min(2 * size, self.capacity)
            self._allocate(size)
            _extend(self.tokens, self.links, self.heads, 0, held)
        _extend(self.tokens, self.links, self.heads, self.length, tokens)
        self.length = wanted

    def last(self, count: int) -> np.ndarray:
        """The last tokens, at most `count` of them, oldest first."""
        places = np.arange(self.length - min(count, self.held), self.length)
        return self.tokens[places % len(self.tokens)]

    def find(self, context: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
        """Places that something follows and in front of which `context` [T] int32 ends -> (places, matches), int64.

        matches: how many tokens agree, 1 to `LONGEST`. The places of longer contexts come first, those of the same
        context latest first; at most `most` of them.
        """
        places, matches = np.empty(most, np.int64), np.empty(most, np.int64)
        found = _find(self.tokens, self.links, self.heads, self.length, context, places, matches)
        return places[:found], matches[:found]

    def follow(self, places: np.ndarray, depth: int) -> np.ndarray:
        """What came after `places` [K] -> [K, depth] int32, `NOTHING` from a text's end on.

        At the sequence's own end a continuation goes on with itself: what has been a loop is expected to stay one.
        """
        return _follow(self.tokens, self.length, places, depth)


@numba.njit(cache=True)
def _slot(tokens, end, count, mask):
    """Place in the table of heads of the `count` tokens in front of place `end`, in a ring."""
    size, mixed = len(tokens), np.uint64(count)
    for place in range(end - count, end):
        mixed = (mixed ^ np.uint64(np.uint32(tokens[place % size]))) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return np.int64(mixed & np.uint64(mask))


@numba.njit(cache=True)
def _extend(tokens, links, heads, length, new):
    size, mask = len(tokens), heads.shape[1] - 1
    for token in new:
        tokens[length % size] = token
        length += 1
        for level in range(len(CONTEXTS)):
            count = CONTEXTS[level]
            if count <= min(length, size):
                slot = _slot(tokens, length, count, mask)
                links[level, length % size] = heads[level, slot]
                heads[level, slot] = length


@numba.njit(cache=True)
def _find(tokens, links, heads, length, context, places, matches):
    size, mask, known = len(tokens), heads.shape[1] - 1, len(context)
    begin, found = max(0, length - size), 0
    for level in range(len(CONTEXTS) - 1, -1, -1):
        count = CONTEXTS[level]
        if count > known:
            continue
        longer = CONTEXTS[level + 1] if level + 1 < len(CONTEXTS) else LONGEST + 1
        place = heads[level, _slot(context, known, count, mask)]
        for _ in range(VISITS):
            # A link is overwritten only when its place has fallen off, and older places have, too.
            if found == len(places) or place - count < begin:
                break
            if place < length and tokens[place % size] >= 0:
                match, most = 0, min(LONGEST, known, place - begin)
                while match < most and tokens[(place - 1 - match) % size] == context[known - 1 - match]:
                    match += 1
                if count <= match < longer:  # longer ones have been found
                    places[found], matches[found] = place, match
                    found += 1
            place = links[level, place % size]
    return found


@numba.njit(cache=True)
def _follow(tokens, length, places, depth):
    size = len(tokens)
    after = np.full((len(places), depth), NOTHING, np.int32)
    for row in range(len(places)):
        for step in range(depth):
            place = places[row] + step
            token = tokens[place % size] if place < length else after[row, place - length]
            if token < 0:
                break
            after[row, step] = token
    return after
