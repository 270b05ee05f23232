"""What a drafter hands over: candidate tokens per depth, with their log-probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class DraftProposal:
    """Top-W candidates of every depth, one row a depth, shared by all parents of that depth.

    A one-pass head yields `D` position-wise distributions; the tree is grown in the cross product of
    their top-W lists (JetSpec paper, appendix A.1). Row 0 predicts the token right after the anchor.

    token_ids: `[B, D, W]` int64, distinct within a row.
    logprobs:  `[B, D, W]` fp32, log-softmax over the *full* vocabulary, so <= 0, and non-increasing
               along W. Computed in fp32: half precision has too few steps and would invent ties.
               `-inf` marks a candidate that must not be drafted.
    entropy:   `[B, D]` fp32, nats, of the full row; None if no scoring policy needs it.

    Raises ValueError on a wrong shape, TypeError on a wrong dtype. Values are not looked at: that would
    make the host wait for the device once a round.
    """

    token_ids: Tensor
    logprobs: Tensor
    entropy: Tensor | None = None

    def __post_init__(self) -> None:
        if self.token_ids.dim() != 3 or 0 in self.token_ids.shape[1:]:
            raise ValueError(f"token_ids must be [B, D, W], D and W >= 1; got {tuple(self.token_ids.shape)}")
        if self.logprobs.shape != self.token_ids.shape:
            raise ValueError(
                f"logprobs {tuple(self.logprobs.shape)} must match token_ids {tuple(self.token_ids.shape)}"
            )
        if self.token_ids.dtype != torch.int64:
            raise TypeError(f"token_ids must be int64, got {self.token_ids.dtype}")
        if self.logprobs.dtype != torch.float32:
            raise TypeError(f"logprobs must be float32, got {self.logprobs.dtype}")
        if self.entropy is not None:
            if self.entropy.shape != self.token_ids.shape[:2]:
                raise ValueError(
                    f"entropy must be [B, D] = {tuple(self.token_ids.shape[:2])}, "
                    f"got {tuple(self.entropy.shape)}"
                )
            if self.entropy.dtype != torch.float32:
                raise TypeError(f"entropy must be float32, got {self.entropy.dtype}")

    def corner(self, depth: int, width: int) -> "DraftProposal":
        """The first `width` candidates of the first `depth` rows, as views."""
        entropy = None if self.entropy is None else self.entropy[:, :depth]
        return DraftProposal(self.token_ids[:, :depth, :width], self.logprobs[:, :depth, :width], entropy)

    @property
    def batch_size(self) -> int:
        return self.token_ids.shape[0]

    @property
    def depth(self) -> int:
        """Levels below the anchor: the most drafts a round can accept."""
        return self.token_ids.shape[1]

    @property
    def width(self) -> int:
        """Candidates per row: the most children a node can have."""
        return self.token_ids.shape[2]

    @staticmethod
    def cat(parts: "Sequence[DraftProposal]") -> "DraftProposal":
        """The rows of several one after another. All have entropy, or none."""
        entropy = [part.entropy for part in parts if part.entropy is not None]
        return DraftProposal(
            torch.cat([part.token_ids for part in parts], dim=1),
            torch.cat([part.logprobs for part in parts], dim=1),
            torch.cat(entropy, dim=1) if entropy else None,
        )

    def rows(self, index: Tensor) -> "DraftProposal":
        """The proposals of requests `index` [B'] int64."""
        entropy = None if self.entropy is None else self.entropy[index]
        return DraftProposal(self.token_ids[index], self.logprobs[index], entropy)
