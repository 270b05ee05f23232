"""Rounds at matched prefixes: what each head ranks first there, and what the target thinks of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from jetspec_sglang.tree import build_tree_by_path

from ..training.evaluate import accepted_in_tree, truth_table
from ..training.shards import Sequence
from .answers import anchors_of, with_taps
from .branches import best_branches
from .heads import LoadedHead, for_trees, longest_block
from .rows import Branch, Draft, Round
from .target_logprobs import branch_logprobs

BRANCHES = 5  # of a head at a prefix
PREFIX_TOKENS = 16  # of the text's end that a round shows
PLACES = 5  # decimals of a log-probability that are kept


@dataclass(frozen=True)
class Proposal:
    """What a head drafts behind A anchors, on the CPU."""

    tokens: Tensor  # [A, K, D] int64, the K likeliest blocks
    logprobs: Tensor  # [A, K, D] fp32, of each token
    accepted: Tensor  # [A, K] int64, how many of a block's tokens lead the target's own continuation
    tree_accepted: Tensor  # [A] int64, the same for the best path of a tree


class Analysis:
    """Heads of one target, asked at the same prefixes."""

    def __init__(
        self,
        model: Any,
        layers: tuple[int, ...],
        heads: list[LoadedHead],
        decode: Callable[[list[int]], str],
        budget: int,
    ) -> None:
        """model: the target; layers: those whose features the answers bring; budget: nodes of a tree, with root."""
        self.model, self.layers, self.heads = model, layers, heads
        self.decode, self.budget = decode, budget
        self.embedding = model.get_input_embeddings().weight
        self.lm_head = model.get_output_embeddings().weight
        self.block = longest_block(heads)

    def rounds(self, prompt: int, answer: Sequence, count: int) -> list[Round]:
        """At most `count` of one answer, a whole block apart; fewer where it is short."""
        anchors = anchors_of(answer, self.block, count)
        if not len(anchors):
            return []
        proposals = {head.label: self.propose(head, answer, anchors) for head in self.heads}
        hung = [
            (anchor, branch)
            for proposal in proposals.values()
            for anchor, branches in zip(anchors.tolist(), proposal.tokens, strict=True)
            for branch in branches
        ]
        judged = iter(branch_logprobs(self.model, answer.tokens, *map(list, zip(*hung, strict=True))))
        drafts = {label: self._drafts(proposal, judged) for label, proposal in proposals.items()}
        return [
            Round(
                prompt=prompt,
                number=i + 1,
                anchor=anchor,
                prefix=self.decode(answer.tokens[max(0, anchor + 1 - PREFIX_TOKENS) : anchor + 1].tolist()),
                truth=self.decode(answer.tokens[anchor + 1 : anchor + self.block].tolist()),
                drafts={label: each[i] for label, each in drafts.items()},
            )
            for i, anchor in enumerate(anchors.tolist())
        ]

    @torch.no_grad()
    def propose(self, head: LoadedHead, answer: Sequence, anchors: Tensor) -> Proposal:
        """What `head` drafts behind anchors [A] of a text."""
        answer = with_taps(answer, self.layers, head.taps)
        expanders = head.expanders(self.embedding, self.lm_head, answer, anchors)
        roots = answer.tokens[anchors].to(self.lm_head.device)
        truth = truth_table(answer, anchors, head.depth)
        tokens, logprobs = (each.cpu() for each in best_branches(expanders(), roots, head.depth, BRANCHES))
        tree = build_tree_by_path(
            for_trees(expanders(), head.depth, self.budget),
            roots,
            self.budget,
            width=head.width,
            depth=head.depth,
            frontier=head.frontier,
        )
        return Proposal(
            tokens=tokens,
            logprobs=logprobs,
            accepted=(tokens == truth[:, None]).long().cumprod(2).sum(2),
            tree_accepted=accepted_in_tree(tree, truth.to(roots.device)).cpu(),
        )

    def _drafts(self, proposal: Proposal, judged: Iterator[Tensor]) -> list[Draft]:
        """A draft an anchor; takes the target's log-probabilities of its branches, in order, from `judged`."""
        return [
            Draft(
                branches=[
                    Branch(
                        text=self.decode(tokens),
                        tokens=tokens,
                        draft=_rounded(logprobs),
                        target=_rounded(next(judged).tolist()),
                        accepted=accepted,
                    )
                    for tokens, logprobs, accepted in zip(
                        *(
                            values[i].tolist()
                            for values in (proposal.tokens, proposal.logprobs, proposal.accepted)
                        ),
                        strict=True,
                    )
                ],
                tree_accepted=int(proposal.tree_accepted[i]),
            )
            for i in range(len(proposal.tokens))
        ]


def _rounded(values: list[float]) -> list[float]:
    return [round(value, PLACES) for value in values]
