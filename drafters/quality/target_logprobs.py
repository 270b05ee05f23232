"""What the target thinks of branches that hang on a text at several places: one forward over text and branches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..training.target import LOGIT_ROWS, decoder


@torch.no_grad()
def branch_logprobs(model: Any, text: Tensor, anchors: list[int], branches: list[Tensor]) -> list[Tensor]:
    """Log-probability of each token of each branch, the text up to the anchor and the tokens before it being given.

    text: [L] int64. anchors: position in it that branch i hangs on. branches: [D_i] int64, of any lengths.
    Returns [D_i] fp32 on the CPU, at temperature 1. `model`: of transformers, with any attention that takes a mask
    of four dimensions.
    """
    device = model.device
    context = text[: max(anchors) + 1]
    # The last token of a branch predicts nothing that is asked for.
    pieces = [context, *(branch[:-1] for branch in branches)]
    starts = torch.tensor([-1, *anchors])  # the text hangs on nothing
    lengths = torch.tensor([len(piece) for piece in pieces])
    owner = torch.arange(len(pieces)).repeat_interleave(lengths)
    positions = torch.cat([start + 1 + torch.arange(n) for start, n in zip(starts, lengths, strict=True)])
    reach = torch.where(owner == 0, positions, starts[owner])  # how far into the text a token sees
    in_text = (owner == 0) & (positions <= reach[:, None])
    in_branch = (owner == owner[:, None]) & (positions <= positions[:, None])
    bias = torch.zeros(in_text.shape, dtype=model.dtype)
    bias.masked_fill_(~(in_text | in_branch), torch.finfo(model.dtype).min)
    hidden = decoder(model)(
        input_ids=torch.cat(pieces)[None].to(device),
        attention_mask=bias[None, None].to(device),
        position_ids=positions[None].to(device),
        use_cache=False,
    ).last_hidden_state[0]
    ends = lengths.cumsum(0).tolist()
    rows = torch.cat(
        [torch.cat((torch.tensor([a]), torch.arange(ends[i], ends[i + 1]))) for i, a in enumerate(anchors)]
    )
    said = _logprobs(model, hidden[rows.to(device)], torch.cat(branches).to(device)).cpu()
    return list(said.split([len(branch) for branch in branches]))


def _logprobs(model: Any, hidden: Tensor, tokens: Tensor) -> Tensor:
    """[R]: log-probability of tokens [R] behind hidden states [R, H]."""
    lm_head, found = model.get_output_embeddings(), []
    for states, chosen in zip(hidden.split(LOGIT_ROWS), tokens.split(LOGIT_ROWS), strict=True):
        logits = lm_head(states).float()
        found.append(logits.gather(1, chosen[:, None])[:, 0] - logits.logsumexp(1))
    return torch.cat(found)
