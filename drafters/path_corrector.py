"""A small module that lets a block head's branches know their parents.

A block head drafts one row of candidates a depth, the same for all nodes there. The corrector changes the logits of
a row's likeliest candidates for each node by the tokens on the path to it. It is both the model that is trained and
what is served. For the node whose children are drafted, the last token of whose path is `parent`:

    state      gru, domino:  s = GRU(x(parent), s of the node above), zero above the anchor, which is read first
               mlp:          s = x(parent)
    query      gru:          q = silu(P [h; s]) / sqrt(r)          h: the block's output for this depth
               domino:       q = silu(P [h; s])
               mlp:          q = silu(g) * u / sqrt(r),  [g; u] = P [h; s]
    candidate  gru, mlp:     k_c = K x(c);  domino: row c of a table
    logit      l_c + q . k_c

x is the target's embedding, for gru and mlp normed, which like the scaling keeps training steps of one size. gru is
the correction of Domino (arXiv 2605.29707) with candidates known by their embeddings instead of a table over the
vocabulary. mlp is the idea of TreeFlash (arXiv 2606.03819), a gated layer over block output and parent, here of low
rank and in front of the logits. With K at zero, where training starts, the head is the uncorrected one.

The first `skip` depths stay as they are, one unless a head says otherwise: the first row's parent is the anchor, which
the block reads itself. Published TreeFlash heads are another module, `treeflash_corrector`.

Letters in shapes: r rank, s state size (H for mlp), C candidates, H hidden.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .head_config import HeadConfig
from .rms_norm import RMSNorm
from .treeflash_corrector import TreeFlashCorrector

LIMIT = 60.0  # nats, of a correction; e^60 is still far from float32's end
SMALLEST = 1e-7  # of a row's corrected mass, in units of its own mass

Embed = Callable[[Tensor], Tensor]
"""The target's embedding: ids [...] int64 -> [..., H]."""


class PathCorrector(nn.Module):
    """`state_dict()` is what a checkpoint holds under `path_corrector.`."""

    reads_residual = False  # of the block's outputs, those behind the final norm

    def __init__(self, head: HeadConfig) -> None:
        super().__init__()
        config = head.corrector
        assert config is not None  # `make_corrector` asks
        self.config, hidden = config, head.hidden_size
        size = config.state_size
        if size is not None:  # gates r, z, n, as torch's GRU has them, without biases
            self.inputs = nn.Linear(hidden, 3 * size, bias=False)
            self.recurrence = nn.Linear(size, 3 * size, bias=False)
        width = config.rank * (2 if config.kind == "mlp" else 1)
        self.project = nn.Linear(hidden + (size or hidden), width, bias=False)
        if config.kind == "domino":
            self.table = nn.Embedding(head.vocab_size, config.rank)
            nn.init.zeros_(self.table.weight)
        else:
            self.norm = RMSNorm(hidden, head.rms_norm_eps)
            self.keys = nn.Linear(hidden, config.rank, bias=False)
            nn.init.zeros_(self.keys.weight)
        self.hidden_size = hidden

    def advance(self, parents: Tensor, above: Tensor | None, embed: Embed) -> Tensor:
        """States [..., s] of nodes from their tokens [...] int64 and the states [..., s] of their parents.

        above: None for the anchors.
        """
        read = self._read(embed(parents))
        if self.config.kind == "mlp":
            return read
        gates = self.inputs(read).chunk(3, dim=-1)
        if above is None:
            above = gates[0].new_zeros(gates[0].shape)
        reset, keep, new = self.recurrence(above).chunk(3, dim=-1)
        fresh = torch.tanh(gates[2] + torch.sigmoid(gates[0] + reset) * new)
        return torch.lerp(fresh, above, torch.sigmoid(gates[1] + keep))

    def of_slots(self, hidden: Tensor) -> Tensor:
        """The part of queries that all nodes of a depth share, from the block's outputs [..., H]."""
        return F.linear(hidden, self.project.weight[:, : self.hidden_size])

    def queries(self, slots: Tensor, states: Tensor) -> Tensor:
        """[..., r], of nodes with states [..., s] whose children are at `slots`, as `of_slots` gives them."""
        projected = slots + F.linear(states, self.project.weight[:, self.hidden_size :])
        if self.config.kind == "domino":
            return F.silu(projected)
        scale = self.config.rank**-0.5
        if self.config.kind == "gru":
            return F.silu(projected) * scale
        gate, up = projected.chunk(2, dim=-1)
        return F.silu(gate) * up * scale

    def candidates(self, ids: Tensor, embed: Embed) -> Tensor:
        """[..., r], of tokens [...] int64."""
        return self.table(ids) if self.config.kind == "domino" else self.keys(self._read(embed(ids)))

    def _read(self, embedded: Tensor) -> Tensor:
        if self.config.kind == "domino":
            return embedded.to(self.project.weight.dtype)
        return self.norm(embedded)


Corrector = PathCorrector | TreeFlashCorrector


def make_corrector(head: HeadConfig) -> Corrector:
    """Of the kind that the head has. Raises ValueError for a head without one."""
    if head.corrector is None:
        raise ValueError("this head has no path corrector")
    return TreeFlashCorrector(head) if head.corrector.kind == "treeflash" else PathCorrector(head)


def corrections(queries: Tensor, candidates: Tensor) -> Tensor:
    """q . k of nodes [..., F, r] and the candidates of their row [..., C, r] -> [..., F, C] float32."""
    with torch.autocast(queries.device.type, enabled=False):
        return (queries.float() @ candidates.float().mT).clamp(-LIMIT, LIMIT)


def log_mass(logprobs: Tensor, changes: Tensor) -> Tensor:
    """Logarithm of a row's mass once logits of some of its tokens have changed: what the others lose, [..., 1].

    logprobs, changes [..., C] float32, the former over the full vocabulary. The mass is 1 + sum p (e^change - 1). What
    cancellation leaves of it is exact to some 1e-7, as the log-probabilities themselves are. No change, no loss, bit
    for bit.
    """
    grown = (logprobs.exp() * torch.expm1(changes)).sum(-1, keepdim=True)
    return torch.log1p(grown.clamp_min(SMALLEST - 1))


def corrected(
    logprobs: Tensor, changes: Tensor, entropy: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Full-vocabulary log-probabilities of tokens after logits have changed.

    logprobs [..., K] float32: of K different tokens, before; changes [..., C], C <= K, of the first C of them, and of
    no other token. entropy [...]: of the whole row before, None if nobody asks. -> [..., K], and the row's entropy
    after, in nats.
    """
    loss = log_mass(logprobs[..., : changes.shape[-1]], changes)
    after = logprobs + F.pad(changes, (0, logprobs.shape[-1] - changes.shape[-1])) - loss
    after = after.clamp_max(0)  # rounded up, a child would outrank its parent
    if entropy is None:
        return after, None
    loss = loss[..., 0]
    # The tokens that are not here: their p log p is what the row has beyond those that are.
    others, mass = entropy - row_entropy(logprobs), (1 - logprobs.exp().sum(-1)).clamp_min(0)
    return after, row_entropy(after) + torch.exp(-loss) * (others + loss * mass)


def row_entropy(logprobs: Tensor) -> Tensor:
    """-sum p log p, to which tokens of -inf add nothing."""
    return -(logprobs.exp() * logprobs.clamp_min(torch.finfo(logprobs.dtype).min)).sum(-1)
