"""Running and finished texts, and what they say about how a text goes on. Numbers on the host, no engine."""

from collections import defaultdict
from collections.abc import Collection

import numpy as np

from jetspec_sglang.tree.tally import Tally, judged

from .branches import CELLS, Branches, grow
from .index import LONGEST, NOTHING, TokenIndex

PLACES = 32  # of a text's own, and as many of finished ones, that may vote
LEAD = 16  # tokens of a prompt's end that are kept with its answer, so that its beginning can be found


class Text:
    """One running request: its tokens so far, the anchor last, and what was last drafted for it."""

    def __init__(self, limit: int) -> None:
        self.index = TokenIndex(limit)
        self.drafted: Branches | None = None


class Texts:
    """The texts of a server.

    limit: the longest text there can be, in tokens. cache: how many tokens of finished ones are remembered, the
    latest; with 0 a request is drafted for from its own text alone.

    What becomes of a draft is seen in the text itself when it has grown, so nobody has to report it.
    """

    def __init__(self, limit: int, cache: int) -> None:
        self._limit = limit
        self._running: dict[str, Text] = defaultdict(lambda: Text(limit))
        self._cache = cache
        self.clear()
        self._tally = Tally(CELLS)
        self._counts = {"drafts": 0, "judged": 0, "confirmed": 0}

    def clear(self) -> None:
        """Forget all finished texts."""
        self._finished = TokenIndex(self._cache) if self._cache else None

    def known(self, rid: str) -> tuple[int, int]:
        """How many tokens of a request's text are known, and the last of them; (0, -1) if it is new."""
        if rid not in self._running:
            return 0, NOTHING
        index = self._running[rid].index
        return index.length, int(index.last(1)[0])

    def forget(self, rid: str) -> None:
        self._running.pop(rid, None)

    def keep_only(self, rids: Collection[str]) -> None:
        """Forget the requests that are not among `rids`: they have finished, or will come again with their text."""
        for rid in [rid for rid in self._running if rid not in rids]:
            del self._running[rid]

    def draft(self, rid: str, new: np.ndarray, most: int, depth: int, *, alone: bool = False) -> Branches:
        """What may follow, once `new` [T] int64 is appended to what is known of the request's text.

        Its last token is the root of a tree of at most `most` nodes, up to `depth` deep. `alone`: found in this text
        only, not in finished ones.
        """
        text = self._running[rid]
        if text.drafted is not None:
            self._learn(text.drafted, new)
        text.index.extend(new)
        context = text.index.last(LONGEST)
        places, matches = text.index.find(context, PLACES)
        after = text.index.follow(places, depth)
        if self._finished is not None and not alone:
            places, others = self._finished.find(context, PLACES)
            after = np.concatenate([after, self._finished.follow(places, depth)])
            matches = np.concatenate([matches, others])
        text.drafted = grow(int(new[-1]), after, matches, self._tally.factors, most)
        self._counts["drafts"] += len(text.drafted.tokens) - 1
        return text.drafted

    def _learn(self, drafted: Branches, actual: np.ndarray) -> None:
        slots, accepted = judged(drafted.tokens, drafted.parent, len(drafted.tokens), actual)
        self._tally.learn(drafted.claim[slots], drafted.cell[slots], accepted)
        self._counts["judged"] += len(slots)
        self._counts["confirmed"] += int(accepted.sum())

    def finish(self, rid: str, prompt: np.ndarray, answer: np.ndarray) -> None:
        """Remember a finished request's answer, as far as there is room; int [T] each."""
        self.forget(rid)
        if self._finished is not None and len(answer):
            self._finished.extend(np.concatenate([prompt[-LEAD:], answer, [NOTHING]]))

    def report(self) -> dict:
        """Plain values: what is held, and how many retrieved nodes were drafted, put to the test and confirmed."""
        running = [text.index for text in self._running.values()]
        finished = [self._finished] if self._finished is not None else []
        return {
            "running_texts": len(running),
            "running_tokens": sum(index.held for index in running),
            "cache_tokens": sum(index.held for index in finished),
            "cache_capacity": sum(index.capacity for index in finished),
            "bytes": sum(index.nbytes for index in running + finished),
            **self._counts,
        }
