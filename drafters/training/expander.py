"""Heads that run once a depth or a block in plain torch, as `tree.build_tree_by_path` asks them: for evaluation."""

from __future__ import annotations

import torch
from torch import Tensor

from jetspec_sglang.kernels.top_k import top_k_logprobs
from jetspec_sglang.tree import DraftProposal

from ..autoregressive_head import AutoregressiveHead
from ..spec_block_expander import Blocks
from ..spec_block_head import SpecBlockHead


class PathExpander:
    """Drafts after several anchors of one text at once; each anchor is a request of the tree builder's batch."""

    def __init__(
        self,
        head: AutoregressiveHead,
        embedding: Tensor,
        lm_head: Tensor,
        tokens: Tensor,
        taps: Tensor,
        anchors: Tensor,
        width: int,
    ) -> None:
        """embedding [V, H], lm_head [V, H]; tokens [L] int64 and taps [L, K*H] of the text; anchors [A] int64."""
        self.head, self.embedding, self.lm_head = head, embedding, lm_head
        self.anchors, self.width = anchors, width
        features = head.fuse(taps[None].to(head.fc.weight.dtype))
        rows = torch.arange(len(tokens) - 1, device=tokens.device)
        context = head.context_kv(features[:, :-1], embedding[tokens[1:]][None], rows[None])
        self.rows = tuple(each.expand(len(anchors), -1, -1, -1) for each in context)
        self.seen = rows < anchors[:, None, None] - 1  # [A, F, rows]: what the parents of a frontier may see
        self.outputs = features[0, anchors - 1][:, None]  # [A, F, H], the rows of the frontier before

    def __call__(self, tokens: Tensor, parents: Tensor, depth: int) -> DraftProposal:
        frontier = tokens.shape[1]

        def of_parent(values: Tensor) -> Tensor:
            return values.gather(1, parents[..., None].expand(-1, -1, values.shape[-1]))

        own = torch.eye(frontier, dtype=torch.bool, device=tokens.device).expand(len(tokens), -1, -1)
        self.seen = torch.cat((of_parent(self.seen), own), dim=-1)
        positions = (self.anchors - 1 + depth)[:, None].expand(-1, frontier)
        self.outputs, self.rows = self.head(
            of_parent(self.outputs), self.embedding[tokens], positions, self.rows, self.seen
        )
        logits = self.head.logits(self.outputs.flatten(0, 1).to(self.lm_head.dtype), self.lm_head)
        logprobs, ids = top_k_logprobs(logits, self.width)
        shape = (*tokens.shape, self.width)
        return DraftProposal(self.head.token_ids(ids).view(shape), logprobs.view(shape))


def spec_blocks(
    head: SpecBlockHead, embedding: Tensor, lm_head: Tensor, taps: Tensor, anchors: Tensor, width: int
) -> Blocks:
    """For drafting after several anchors of one text at once, as `PathExpander` does.

    embedding [V, H], lm_head [V, H]; taps [L, K*H] of the text; anchors [A] int64.
    """
    where = torch.arange(len(taps), device=taps.device)
    context = head.context_kv(taps[None].to(head.fc.weight.dtype), where[None])
    many = len(anchors), -1, -1, -1
    rows = [(k.expand(many), v.expand(many)) for k, v in context]
    seen = where < anchors[:, None, None]
    mask = embedding[head.config.mask_token_id]

    def forward(tokens: Tensor, depths: Tensor, inherited: Tensor) -> Tensor:
        at, nodes = anchors[:, None] + depths, tokens.shape[1]
        return head(embedding[tokens], mask, at, rows, seen.expand(-1, nodes, -1), inherited)

    def candidates(outputs: Tensor, kept: int, entropy: bool) -> tuple[DraftProposal, Tensor]:
        assert not entropy  # nobody asks for it here
        normed = head.norm(outputs)
        logprobs, ids = top_k_logprobs(normed.flatten(0, 1).to(lm_head.dtype) @ lm_head.T, kept)
        shape = (*outputs.shape[:2], kept)
        return DraftProposal(ids.view(shape), logprobs.view(shape)), head.rank_head(normed).float()

    return Blocks(head.config, forward, candidates, width)
