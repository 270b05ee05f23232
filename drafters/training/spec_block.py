"""What is taught to a spec-block head: rows of valid prefixes, and at which rank the target's token stands.

A position of a block knows the block's first token, which in training is the text's, and nothing of the text behind
it. Where the text went a way that the head's tree never goes, its label teaches that position what comes after other
tokens than those that were drafted. The valid-prefix mask, SpecBlock's, therefore leaves out the labels behind the
first one that is not among a row's likeliest tokens.

The rank head learns by cross entropy at which of a row's R likeliest tokens, over the whole vocabulary, the label
stands, or that it is none of them. It starts from what the row itself says of that and learns offsets to it. This does
not move the rest of the head: all that it reads of the rows is detached. Its part of the loss counts a tenth. To AdamW
that is all the same, but the gradient's norm, by which the whole is clipped, would be mostly the rank head's.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from jetspec_sglang.kernels.top_k import top_k_logprobs

from ..head_config import SpecBlockConfig
from ..path_corrector import SMALLEST
from ..spec_block_head import SpecBlockHead
from .batch import Batch
from .config import FitConfig
from .loss import objective_loss
from .student import Student

ROWS = 128  # of which logits are kept at a time
RANK_SHARE = 0.1  # of the rank head's cross entropy in the loss


class SpecBlockStudent(Student):
    """Gives the rows of a batch's labels, [R, H], and the rank head's offsets for each, [R, ranks + 1]."""

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        assert isinstance(self.head, SpecBlockHead)
        hidden = self.hidden(batch)
        return hidden, self.head.rank_head(hidden.detach())


def spec_block_loss(
    config: FitConfig,
    shape: SpecBlockConfig,
    batch: Batch,
    hidden: Tensor,
    offsets: Tensor,
    lm_head: Tensor,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """The configured objective plus RANK_SHARE of the rank head's cross entropy, and the latter, which is detached.

    Means over labels of valid prefixes. hidden [R, H] and offsets [R, ranks + 1] as `SpecBlockStudent` gives them;
    ``generator`` as in `objective_loss`.
    """
    ranks, said = label_ranks(hidden.detach(), lm_head, batch.labels, shape.ranks)
    allowed = shape.ranks if config.valid_prefix is None else config.valid_prefix
    valid = (
        valid_prefix(ranks < allowed, batch.depths) if allowed else torch.ones_like(ranks, dtype=torch.bool)
    )
    labels, teacher = batch.labels[valid], batch.teacher.at(valid)
    loss = objective_loss(config, hidden[valid], lm_head, labels, teacher, generator)
    rank_loss = F.cross_entropy(said[valid] + offsets[valid].float(), ranks[valid].clamp(max=shape.ranks))
    return loss + RANK_SHARE * rank_loss, rank_loss.detach()


def label_ranks(hidden: Tensor, lm_head: Tensor, labels: Tensor, inside: int) -> tuple[Tensor, Tensor]:
    """How many tokens a row prefers to its label, [R] int64, and the row's log-probabilities of its ``inside``
    likeliest tokens and of none of them, [R, inside + 1] float32. hidden [R, H], lm_head [V, H], labels [R] int64."""
    found, likeliest = [], []
    for rows, wanted in zip(hidden.to(lm_head.dtype).split(ROWS), labels.split(ROWS), strict=True):
        logits = rows @ lm_head.T
        own = logits.gather(1, wanted[:, None])
        likeliest.append(top_k_logprobs(logits, inside)[0])
        # Counted in place and in float32, which is exact, and several times as fast as a sum of booleans.
        found.append(logits.gt_(own).sum(-1, dtype=torch.float32).long())
    first = torch.cat(likeliest)
    none = (1 - first.exp().sum(-1, keepdim=True)).clamp_min(SMALLEST).log()
    return torch.cat(found), torch.cat((first, none), dim=-1)


def valid_prefix(right: Tensor, depths: Tensor) -> Tensor:
    """Which labels have only right ones above them, [R] bool.

    right [R] bool: whether a row has its label where it is looked for; depths [R] int64, 1, 2, ... below each anchor,
    one anchor after another.
    """
    wrong = (~right).long()
    before = wrong.cumsum(0) - wrong
    anchor = (depths == 1).long().cumsum(0) - 1
    return before == before[depths == 1][anchor]
