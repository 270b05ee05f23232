"""The load as a budget sees it: octaves of the batch, and the usual time between rounds in each."""

from collections import defaultdict, deque
from statistics import median

RECENT_GAPS = 32


def octave_of(batch: int) -> int:
    """1 for 1, 2 for 2 and 3, 3 for 4 to 7, …"""
    return batch.bit_length()


class UsualGaps:
    """Seconds between the end of a round and the start of the next: the median of recent ones.

    By octave of the batch, and whether the round drafted: then more is to be done between rounds.
    """

    def __init__(self) -> None:
        self._recent: dict[tuple[int, bool], deque[float]] = defaultdict(lambda: deque(maxlen=RECENT_GAPS))
        self._usual: dict[tuple[int, bool], float] = {}

    def observe(self, batch: int, drafted: bool, gap: float) -> None:
        key = octave_of(batch), drafted
        self._recent[key].append(gap)
        self._usual[key] = median(self._recent[key])

    def seconds(self, batch: int, drafted: bool) -> float:
        """The usual one of the nearest load where such rounds were seen, or any; 0 before the first."""
        if not self._usual:
            return 0.0
        own = octave_of(batch)
        nearest = min(self._usual, key=lambda key: (key[1] != drafted, abs(key[0] - own)))
        return self._usual[nearest]
