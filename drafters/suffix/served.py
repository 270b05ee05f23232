"""The suffix drafter in a server: texts come from the target's slots, trees go to the worker.

A token is kept for each of the target's KV slots, written like a head's context when tokens are committed. A
request's text is then what its row of the slot table names, and the anchor, so prefix caching, chunked prefill,
retraction, abort and the overlap schedule need no state of ours. What is kept of a request besides (`texts`) is only
an index of that text, made again whenever it doesn't fit.

On an accelerator the text must come to the host: lengths and anchors, then the new tokens, two small copies a round
that wait for the round before. The host's own work of a round, and SGLang's scheduling, is then no longer hidden
behind the device's. Nothing waits on a CPU.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from jetspec_sglang.tree import NONE, TokenTree

from ..contract import CommittedTokens, DrafterSpec
from .branches import Branches
from .texts import Texts


class SuffixDrafter:
    """Drafts what followed when the text stood there before: no model, no features, no scratch slots."""

    worker = None
    runner = None

    def __init__(self, *, head, depth: int, target_worker, **unused: Any) -> None:
        """head: a `NoHead`, which says how much the cache of finished texts holds. `unused`: what drafters with a
        model are made with."""
        self.target = target_worker.model_runner
        self.spec = DrafterSpec.of_retrieval(head.drafter, depth)
        self.texts = Texts(self.target.model_config.context_len + depth + 1, head.cache_tokens)
        self.grown: list[np.ndarray] = []
        self._tokens: Tensor | None = None
        self._requests: dict[str, Any] = {}  # of the last round

    @property
    def tokens(self) -> Tensor:
        """The token in each slot, [slots] int32; made at the first call, as pools don't exist before."""
        if self._tokens is None:
            slots = len(self.target.token_to_kv_pool.get_key_buffer(0))
            self._tokens = torch.zeros(slots, dtype=torch.int32, device=self.target.device)
        return self._tokens

    def slots(self, depth: int) -> int:
        return 0

    @torch.inference_mode()  # the table may have been made by a round, which is in it
    def append_context(self, committed: CommittedTokens) -> None:
        self.tokens[committed.slots] = committed.tokens.to(torch.int32)

    def branches(
        self,
        anchors: Tensor,
        batch: Any,
        budgets: Sequence[int],
        depths: Sequence[int],
        shown: Sequence[bool],
    ) -> TokenTree:
        """See `contract.RetrievalDrafter`."""
        self.grown = []
        roots = anchors.tolist()
        found: list[Branches | None] = [None] * len(roots)
        if not batch.reqs:  # a dry run: requests that have no text
            return _batched(roots, found, max(budgets))
        rids = [req.rid for req in batch.reqs]
        self._requests = dict(zip(rids, batch.reqs, strict=True))
        wanted = [row for row, most in enumerate(budgets) if most > 1]
        self.texts.keep_only({rids[row] for row in wanted})
        self.grown = self._new_tokens(rids, roots, batch, wanted)
        for row in wanted:
            found[row] = self.texts.draft(
                rids[row], self.grown[row], budgets[row], depths[row], alone=shown[row]
            )
        return _batched(roots, found, 1)

    def _new_tokens(
        self, rids: list[str], roots: list[int], batch: Any, wanted: list[int]
    ) -> list[np.ndarray]:
        """What each wanted text has grown by since it was last drafted for, its anchor last; all of it if it is
        not what it was. Nothing for the others."""
        ends = batch.seq_lens.tolist()
        known = [self.texts.known(rid) for rid in rids]
        # One token more than is new: if it differs, the text is another than the one that is known.
        starts = [count - 1 if 0 < count <= end else 0 for (count, _), end in zip(known, ends, strict=True)]
        table = batch.req_pool_indices
        stops = list(starts)
        for row in wanted:
            stops[row] = ends[row]
        texts = self._read(table, starts, stops)
        for row in wanted:
            count, token = known[row]
            if count and (starts[row] != count - 1 or texts[row][0] != token):
                self.texts.forget(rids[row])
                if starts[row]:
                    texts[row] = self._read(table[row : row + 1], [0], [ends[row]])[0]
            elif count:
                texts[row] = texts[row][1:]
            texts[row] = np.append(texts[row], roots[row])
        return texts

    def _read(self, rows: Tensor, starts: list[int], ends: list[int]) -> list[np.ndarray]:
        """Committed tokens `starts[i]` to `ends[i]` of the texts in `rows` [R] of the slot table."""
        counts = [end - start for start, end in zip(starts, ends, strict=True)]
        columns = torch.cat([torch.arange(start, end) for start, end in zip(starts, ends, strict=True)])
        each = rows.repeat_interleave(torch.tensor(counts, device=rows.device), output_size=len(columns))
        slots = self.target.req_to_token_pool.req_to_token[each, columns.to(rows.device)]
        flat = self.tokens[slots.to(torch.int64)].cpu().numpy()
        return np.split(flat, np.cumsum(counts)[:-1])

    def finished(self, rid: str) -> None:
        """Remember the answer of a request that has ended."""
        req = self._requests.pop(rid, None)
        if req is not None:
            self.texts.finish(rid, np.array(req.origin_input_ids), np.array(req.output_ids))

    def clear(self) -> None:
        self.texts.clear()

    def report(self) -> dict:
        """Plain values for /server_info; `bytes` counts the token of each slot, too."""
        told = self.texts.report()
        told["bytes"] += self.tokens.numel() * self.tokens.element_size()
        return told


def _batched(roots: list[int], found: list[Branches | None], slots: int) -> TokenTree:
    """One batch of trees, on the host, in as many slots as the largest needs, and no less than `slots`."""
    sizes = [1 if branches is None else len(branches.tokens) for branches in found]
    shape = (len(roots), max(slots, *sizes))
    tokens, parent = np.full(shape, NONE), np.full(shape, NONE)
    depth, logprob = np.zeros(shape, np.int64), np.full(shape, -np.inf, np.float32)
    tokens[:, 0], logprob[:, 0] = roots, 0
    columns: tuple[np.ndarray, ...] = (tokens, parent, depth, logprob)
    for row, (size, branches) in enumerate(zip(sizes, found, strict=True)):
        if branches is not None:
            for column, own in zip(columns, branches, strict=False):
                column[row, :size] = own
    return TokenTree(*map(torch.from_numpy, (*columns, np.array(sizes))))
