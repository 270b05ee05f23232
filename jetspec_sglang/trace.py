"""Rounds kept for those who want to look at them: requests that ask for `"trace": true`."""

from collections import deque
from typing import Any

from .tree import Acceptance, TokenTree

MOST_ROUNDS = 256


class Trace:
    """The last traced rounds of all requests, as plain values. Reading them makes the host wait for the device."""

    def __init__(self) -> None:
        self._rounds: deque[dict[str, Any]] = deque(maxlen=MOST_ROUNDS)
        self._next: dict[str, int] = {}

    def keep(self, requests: list[tuple[int, str]], tree: TokenTree, accepted: Acceptance) -> None:
        """requests: (row in the batch, request id) of those that are traced."""
        for row, rid in requests:
            size, length = int(tree.size[row]), int(accepted.lengths[row])
            number = self._next.pop(rid, 0)
            self._next[rid] = number + 1  # put at the end: the one not seen for longest is forgotten first
            if len(self._next) > MOST_ROUNDS:
                del self._next[next(iter(self._next))]
            self._rounds.append(
                {
                    "rid": rid,
                    "round": number,
                    "tokens": tree.tokens[row, :size].tolist(),
                    "parent": tree.parent[row, :size].tolist(),
                    "depth": tree.depth[row, :size].tolist(),
                    "logprob": tree.logprob[row, :size].tolist(),
                    "path": accepted.path[row, :length].tolist(),
                    "committed": accepted.tokens[row, :length].tolist(),
                }
            )

    def rows(self) -> list[dict[str, Any]]:
        return list(self._rounds)
