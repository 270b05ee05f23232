"""Held-out quality of a head, teacher-forced: per-depth accuracy and the accept length of chain and trees.

The head drafts after *every* response token of the held-out sequences. Decoding is then replayed: a round
at anchor a that accepts n drafts is followed by the round at a+n+1, as a server would. For responses that
were generated greedily this is the accept length a server would see, not an average over positions (which
would count long accepted runs once a token, though a server visits them once a run). Rounds whose block
reaches past the end are left out.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from jetspec_sglang.kernels.top_k import top_k_logprobs
from jetspec_sglang.tree import DraftProposal, TokenTree, build_tree, follow

from ..causal_head import CausalParallelHead
from .batch import collate
from .initialise import Target
from .shards import Ref, Sequence

BUDGETS = (16, 64)  # tree nodes, root included
WIDTH = 16  # candidates a depth
GROUP = 32  # blocks a forward


@dataclass
class Tally:
    """Replayed rounds of one way of drafting."""

    rounds: int = 0
    tokens: int = 0

    def replay(self, accepted: list[int], block_size: int) -> None:
        """accepted[i]: drafts accepted in a round anchored at the i-th response token."""
        at = 0
        while at + block_size <= len(accepted) + 1:
            self.rounds += 1
            self.tokens += accepted[at] + 1
            at += accepted[at] + 1


@torch.no_grad()
def evaluate(
    head: CausalParallelHead, target: Target, refs: list[Ref], tokens: int | None
) -> dict[str, object]:
    """Go over held-out sequences, in one fixed shuffled order, until ``tokens`` response tokens are seen.

    None goes over all of them.

    Returns ``accuracy`` (top-1 a depth) and ``tau_chain``, ``tau_tree16``, ``tau_tree64``.
    """
    depth = head.config.block_size - 1
    tallies = {name: Tally() for name in ("chain", *(f"tree{n}" for n in BUDGETS))}
    hits, seen, done = torch.zeros(depth), torch.zeros(depth), 0
    for ref in random.Random(0).sample(refs, len(refs)):  # a part must not be all of one kind
        if tokens is not None and done >= tokens:
            break
        sequence = ref.read()
        done += len(sequence.anchors())
        ids, logprobs = draft_everywhere(head, target, sequence)
        truth = truth_table(sequence, depth)
        right, inside = ids[:, :, 0] == truth, truth >= 0
        hits += (right & inside).sum(0)
        seen += inside.sum(0)
        accepted = {"chain": right.long().cumprod(1).sum(1)}
        tree = build_tree(
            DraftProposal(ids, logprobs), sequence.tokens[list(sequence.anchors())], max(BUDGETS)
        )
        for budget in BUDGETS:
            accepted[f"tree{budget}"] = accepted_in_tree(tree.prefix(budget), truth)
        for name, counts in accepted.items():
            tallies[name].replay(counts.tolist(), depth + 1)
    taus = {f"tau_{name}": round(t.tokens / max(1, t.rounds), 4) for name, t in tallies.items()}
    return {**taus, "accuracy": [round(x, 4) for x in (hits / seen.clamp_min(1)).tolist()], "tokens": done}


def draft_everywhere(head: CausalParallelHead, target: Target, sequence: Sequence) -> tuple[Tensor, Tensor]:
    """Top candidates after every anchor: ids [A, B-1, WIDTH] int64 and full-vocabulary log-probs,
    float32."""
    config, anchors = head.config, list(sequence.anchors())
    ids, logprobs = [], []
    for start in range(0, len(anchors), GROUP):
        blocks = [(anchor, config.block_size) for anchor in anchors[start : start + GROUP]]
        batch = collate([sequence], [blocks], config, gamma=0.0)
        with torch.autocast("cpu", torch.bfloat16, enabled=target.lm_head.dtype == torch.bfloat16):
            context = head.context_kv(batch.taps.to(head.fc.weight.dtype), batch.context_positions())
            out = head.block_hidden(target.embedding[batch.block_ids], batch.positions, context, batch.mask)
        drafted = out[0].unflatten(0, (len(blocks), config.block_size))[:, 1:].flatten(0, 1)
        logits = drafted.to(target.lm_head.dtype) @ target.lm_head.T
        top_logprobs, top_ids = top_k_logprobs(logits, min(WIDTH, logits.shape[-1]))
        ids.append(top_ids)
        logprobs.append(top_logprobs)
    shape = (len(anchors), config.block_size - 1, -1)
    return torch.cat(ids).view(shape), torch.cat(logprobs).view(shape)


def truth_table(sequence: Sequence, depth: int) -> Tensor:
    """[A, depth] int64: the tokens after each anchor, -1 past the end of the sequence."""
    padded = torch.cat((sequence.tokens, torch.full((depth,), -1)))
    return padded.unfold(0, depth, 1)[[anchor + 1 for anchor in sequence.anchors()]]


def accepted_in_tree(tree: TokenTree, truth: Tensor) -> Tensor:
    """[A] int64: how many leading tokens of ``truth`` [A, depth] lie on one path of the tree."""
    depth = truth.shape[1]
    after_last = torch.nn.functional.pad(truth, (0, 1), value=-1)  # nothing follows the deepest node
    return follow(tree, after_last.gather(1, tree.depth), max_depth=depth).lengths - 1
