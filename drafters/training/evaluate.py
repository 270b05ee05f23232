"""Held-out quality of a head, teacher-forced: per-depth accuracy and the accept length of chain and trees.

The head drafts after *every* response token of the held-out sequences. Decoding is then replayed: a round
at anchor a that accepts n drafts is followed by the round at a+n+1, as a server would. For responses that
were generated greedily this is the accept length a server would see, not an average over positions (which
would count long accepted runs once a token, though a server visits them once a run). Rounds whose block
reaches past the end are left out.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import fields

import torch
from torch import Tensor

from jetspec_sglang.kernels.top_k import top_k_logprobs
from jetspec_sglang.tree import DraftProposal, Expander, TokenTree, build_tree, build_tree_by_path, follow

from ..autoregressive_head import AutoregressiveHead
from ..causal_head import CausalParallelHead
from ..head_config import FRONTIER
from ..path_expander import CorrectedExpander, candidates_needed
from ..spec_block_growth import SpecBlockGrowth
from ..spec_block_head import SpecBlockHead
from ..treeflash_corrector import TreeFlashCorrector
from .batch import block_slots, text_behind
from .expander import PathExpander, spec_blocks
from .shards import Ref, Sequence
from .student import DraftHead

BUDGETS = (16, 64)  # tree nodes, root included
WIDTH = 16  # candidates a node
GROUP = 32  # anchors a forward


class Replay:
    """Rounds of one way of drafting, up to `depth` tokens each."""

    def __init__(self, depth: int) -> None:
        self.depth, self.counts = depth, [0] * (depth + 1)  # rounds by how many drafts they accept

    def add(self, accepted: list[int]) -> None:
        """A response; accepted[i]: drafts accepted in a round anchored at its i-th token."""
        at = 0
        while at + self.depth <= len(accepted):
            self.counts[accepted[at]] += 1
            at += accepted[at] + 1

    @property
    def rounds(self) -> int:
        return sum(self.counts)

    @property
    def reached(self) -> list[float]:
        """Share of rounds that accept at least 1, 2, ... drafts; zeros without a round."""
        behind = [sum(self.counts[least:]) for least in range(1, self.depth + 1)]
        return [count / max(1, self.rounds) for count in behind]

    @property
    def tau(self) -> float:
        """Tokens committed a round, the target's own one included; 0 without a round."""
        return 1 + sum(self.reached) if self.rounds else 0.0


@torch.no_grad()
def evaluate(
    head: DraftHead,
    embedding: Tensor,
    lm_head: Tensor,
    refs: list[Ref],
    read: Callable[[list[Ref]], list[Sequence]],
    tokens: int | None,
) -> dict[str, object]:
    """Go over held-out sequences, in one fixed shuffled order, until ``tokens`` response tokens are seen.

    None goes over all of them. embedding and lm_head [V, H] are the target's; matmuls run in the lm_head's dtype.

    Returns ``accuracy`` (top-1 a depth, the tokens before it being true), ``tau_chain``, ``tau_tree16``,
    ``tau_tree64``, for the same three ``reached_...`` (share of rounds that accept at least 1, 2, ... drafts, whose
    sum is τ - 1), and ``tokens``.
    """
    depth = head.config.block_size - 1
    replays = {name: Replay(depth) for name in ("chain", *(f"tree{n}" for n in BUDGETS))}
    hits, seen, done = torch.zeros(depth), torch.zeros(depth), 0
    for ref in random.Random(0).sample(refs, len(refs)):  # a part must not be all of one kind
        if tokens is not None and done >= tokens:
            break
        [sequence] = read([ref])
        done += len(sequence.anchors())
        accepted: dict[str, list[int]] = {name: [] for name in replays}
        for anchors in torch.tensor(list(sequence.anchors())).split(GROUP):
            device = lm_head.device.type
            with torch.autocast(device, torch.bfloat16, enabled=lm_head.dtype == torch.bfloat16):
                best, tree = draft(head, embedding, lm_head, sequence, anchors)
            truth = truth_table(sequence, anchors, depth)
            right, inside = best == truth, truth >= 0
            hits += (right & inside).sum(0)
            seen += inside.sum(0)
            accepted["chain"] += right.long().cumprod(1).sum(1).tolist()
            for budget in BUDGETS:
                accepted[f"tree{budget}"] += accepted_in_tree(tree.prefix(budget), truth).tolist()
        for name, counts in accepted.items():
            replays[name].add(counts)
    taus = {f"tau_{name}": round(replay.tau, 4) for name, replay in replays.items()}
    reached = {f"reached_{name}": _rounded(replay.reached) for name, replay in replays.items()}
    return {**taus, "accuracy": _rounded((hits / seen.clamp_min(1)).tolist()), **reached, "tokens": done}


def _rounded(shares: list[float]) -> list[float]:
    return [round(share, 4) for share in shares]


def draft(
    head: DraftHead, embedding: Tensor, lm_head: Tensor, sequence: Sequence, anchors: Tensor
) -> tuple[Tensor, TokenTree]:
    """Draft after anchors [A] of a text: the likeliest token at each depth behind true ones [A, B-1], and trees.

    Both are on the CPU, whatever device the head is on.
    """
    width, device = min(WIDTH, len(lm_head)), lm_head.device
    roots = sequence.tokens[anchors]
    if isinstance(head, AutoregressiveHead):
        tokens, taps = sequence.tokens.to(device), sequence.taps.to(device)
        expander = PathExpander(head, embedding, lm_head, tokens, taps, anchors.to(device), width)
        depth = head.config.block_size - 1
        tree = grown(expander, roots.to(device), width, depth, FRONTIER)
        taps = taps[None].to(head.fc.weight.dtype)
        outputs = head.unroll(taps, embedding[tokens][None], anchors.to(device)[None], depth)
        best = head.token_ids(head.logits(outputs[0].to(lm_head.dtype), lm_head).argmax(-1))
        return best.cpu(), tree
    if isinstance(head, SpecBlockHead):
        at, taps, depth = anchors.to(device), sequence.taps.to(device), head.config.block_size - 1
        blocks = spec_blocks(head, embedding, lm_head, taps, at, width)
        growth = SpecBlockGrowth(blocks, depth, max(BUDGETS))
        tree = grown(growth, roots.to(device), width, depth, None)
        texts = embedding[sequence.tokens.to(device)][None]
        taps, mask = taps[None].to(head.fc.weight.dtype), embedding[head.config.mask_token_id]
        rows = head.norm(head.unroll(taps, texts, mask, at[None], depth)[0])
        return (rows.to(lm_head.dtype) @ lm_head.T).argmax(-1).cpu(), tree
    if head.config.corrector is None:
        ids, logprobs = draft_blocks(head, embedding, lm_head, sequence, anchors, width)
        return ids[:, :, 0], build_tree(DraftProposal(ids, logprobs), roots, max(BUDGETS))

    depth = head.config.block_size - 1
    expanders = corrected_expanders(head, embedding, lm_head, sequence, anchors)
    tree = grown(expanders(width), roots.to(device), width, depth, None)
    chain = expanders(1)
    path = text_behind(sequence, anchors, depth).to(device)
    only = torch.zeros_like(path[:, :1])  # one node a level, whose parent is the only one above
    behind = [chain(path[:, k, None], only, k).token_ids[:, 0, 0] for k in range(depth)]
    return torch.stack(behind, dim=1).cpu(), tree


def corrected_expanders(
    head: CausalParallelHead, embedding: Tensor, lm_head: Tensor, sequence: Sequence, anchors: Tensor
) -> Callable[[int], CorrectedExpander]:
    """What makes expanders of a width up to `WIDTH` behind anchors [A], a fresh one each time; of a head with a path
    corrector."""
    return expanders_of(head, block_residuals(head, embedding, sequence, anchors), embedding, lm_head)


def expanders_of(
    head: CausalParallelHead, residuals: Tensor, embedding: Tensor, lm_head: Tensor
) -> Callable[[int], CorrectedExpander]:
    """The same from what the final norm reads for each depth, [A, D, H]."""
    corrector, hidden = head.path_corrector, head.norm(residuals)
    rows = candidate_rows(hidden, lm_head, candidates_needed(corrector, WIDTH, len(lm_head)))
    read = hidden
    if isinstance(corrector, TreeFlashCorrector):
        corrector.share(head.norm.weight, lambda ids: lm_head[ids])
        read = residuals
    return lambda width: CorrectedExpander(corrector, lambda ids: embedding[ids], read, rows, width)


def grown(expander: Expander, roots: Tensor, width: int, depth: int, frontier: int | None) -> TokenTree:
    """The largest tree, on the CPU."""
    tree = build_tree_by_path(expander, roots, max(BUDGETS), width=width, depth=depth, frontier=frontier)
    return TokenTree(**{f.name: getattr(tree, f.name).cpu() for f in fields(tree)})


def draft_blocks(
    head: CausalParallelHead,
    embedding: Tensor,
    lm_head: Tensor,
    sequence: Sequence,
    anchors: Tensor,
    width: int,
) -> tuple[Tensor, Tensor]:
    """Candidates of the block alone after anchors [A]: ids [A, B-1, width] int64 and full-vocabulary log-probs,
    float32."""
    rows = candidate_rows(head.norm(block_residuals(head, embedding, sequence, anchors)), lm_head, width)
    return rows.token_ids.cpu(), rows.logprobs.cpu()


def block_residuals(
    head: CausalParallelHead, embedding: Tensor, sequence: Sequence, anchors: Tensor
) -> Tensor:
    """What the final norm reads for the depths after anchors [A], [A, B-1, H]."""
    config, device, context = head.config, embedding.device, int(anchors[-1])
    slots, _ = block_slots([sequence], [[(a, config.block_size - 1) for a in anchors.tolist()]], config)
    mask = slots.mask(context, config.causal).to(device)
    taps = sequence.taps[None, :context].to(device, head.fc.weight.dtype)
    kv = head.context_kv(taps, torch.arange(context, device=device)[None])
    out = head.block_residual(embedding[slots.ids.to(device)], slots.positions.to(device), kv, mask)
    return head.drafting(out[0].unflatten(0, (len(anchors), config.block_size)))


def candidate_rows(hidden: Tensor, lm_head: Tensor, width: int) -> DraftProposal:
    """The likeliest tokens behind each of the outputs [A, D, H]."""
    logprobs, ids = top_k_logprobs(hidden.flatten(0, 1).to(lm_head.dtype) @ lm_head.T, width)
    return DraftProposal(ids.unflatten(0, hidden.shape[:2]), logprobs.unflatten(0, hidden.shape[:2]))


def truth_table(sequence: Sequence, anchors: Tensor, depth: int) -> Tensor:
    """[A, depth] int64: the tokens after each anchor, -1 past the end of the sequence."""
    padded = torch.cat((sequence.tokens, torch.full((depth,), -1)))
    return padded[anchors[:, None] + 1 + torch.arange(depth)]


def accepted_in_tree(tree: TokenTree, truth: Tensor) -> Tensor:
    """[A] int64: how many leading tokens of ``truth`` [A, depth] lie on one path of the tree."""
    depth = truth.shape[1]
    after_last = torch.nn.functional.pad(truth, (0, 1), value=-1)  # nothing follows the deepest node
    return follow(tree, after_last.gather(1, tree.depth), max_depth=depth).lengths - 1
