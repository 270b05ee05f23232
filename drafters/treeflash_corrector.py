"""The path corrector of published TreeFlash heads (arXiv 2606.03819, github.com/ETH-DISCO/TreeFlash).

It moves the block's output in front of the final norm, by the token that the path ends with:

    [u; g] = W [norm'(x(parent)); norm(h)] + b        h: the residual stream, x: the target's embedding
    h'     = h + D (silu(g) * u)

and the row of a node is lm_head(norm(h')). As a change of logits, it is (norm(h') - norm(h)) . W_c for the lm_head's
row of a candidate c, so the rank in which nodes and candidates meet is H.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .head_config import HeadConfig
from .rms_norm import RMSNorm

EPS = 1e-6  # of the norm of embeddings; it is in no config


class TreeFlashCorrector(nn.Module):
    """With the methods of `path_corrector.PathCorrector`, but for what it reads of a block: the outputs *before* the
    final norm. The norm and the lm_head are others'; `share` says where they are."""

    reads_residual = True

    def __init__(self, head: HeadConfig) -> None:
        super().__init__()
        assert head.corrector is not None  # `make_corrector` asks
        self.config, self.head = head.corrector, head
        hidden, inner = head.hidden_size, head.intermediate_size
        self.norm = RMSNorm(hidden, EPS)
        self.ug = nn.Linear(2 * hidden, 2 * inner)
        self.d = nn.Linear(inner, hidden, bias=False)
        nn.init.zeros_(self.d.weight)
        self._final: list[Tensor] = []  # in a list: not a parameter of ours
        self._unembed: Callable[[Tensor], Tensor] | None = None

    def share(self, norm: Tensor, unembed: Callable[[Tensor], Tensor]) -> None:
        """norm [H]: the final norm's weight; unembed: ids [...] -> rows of the target's lm_head [..., H]."""
        self._final, self._unembed = [norm], unembed

    def advance(self, parents: Tensor, above: Tensor | None, embed: Callable[[Tensor], Tensor]) -> Tensor:
        return self.norm(embed(parents))

    def of_slots(self, hidden: Tensor) -> Tensor:
        """[..., 2H], from residual streams [..., H]."""
        return torch.cat((hidden, self._normed(hidden)), dim=-1)

    def queries(self, slots: Tensor, states: Tensor) -> Tensor:
        residual, normed = slots.chunk(2, dim=-1)
        up, gate = self.ug(torch.cat((states, normed.expand_as(states)), dim=-1)).chunk(2, dim=-1)
        return self._normed(residual + self.d(F.silu(gate) * up)) - normed

    def candidates(self, ids: Tensor, embed: Callable[[Tensor], Tensor]) -> Tensor:
        assert self._unembed is not None  # who makes the module shares the lm_head
        return self._unembed(ids)

    def _normed(self, x: Tensor) -> Tensor:
        [weight] = self._final
        return F.rms_norm(x.float(), (x.shape[-1],), None, self.head.rms_norm_eps).to(weight.dtype) * weight
