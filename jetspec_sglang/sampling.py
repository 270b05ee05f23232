"""The target's choice at tree nodes, with each request's own sampling parameters.

The tree rules (`jetspec_sglang.tree.accept`) need one thing of the target: a token at a node. It comes from
SGLang's own sampler functions, so temperature, top-k, top-p and min-p mean exactly what they mean without JETSPEC.
"""

from dataclasses import replace
from typing import Any

import torch
from sglang.srt.layers.sampler import top_k_top_p_min_p_sampling_from_probs_torch

from jetspec_sglang.row_parts import in_parts
from jetspec_sglang.tree import NONE, Acceptance, TokenTree, follow, host_values, walk


class TargetChoice:
    """Callable `nodes [B, K] -> tokens [B, K]` (all N nodes for None) over the verify logits.

    logits: [B, N, V] fp32; positions: [B, N] int64, the nodes' positions (they key seeded sampling).
    """

    def __init__(self, logits: torch.Tensor, positions: torch.Tensor, info) -> None:
        self.logits = logits
        self.positions = positions
        self.info = info

    def __call__(self, nodes: torch.Tensor | None) -> torch.Tensor:
        logits, positions = self.logits, self.positions
        if nodes is not None:
            rows = torch.arange(len(nodes), device=nodes.device)[:, None]
            logits, positions = logits[rows, nodes], positions[rows, nodes]
        if self.info.is_all_greedy:
            return logits.argmax(-1)
        drawn = self._draw(logits.flatten(0, 1), positions.flatten(), logits.shape[1]).view(positions.shape)
        if not self.info.is_any_greedy:
            return drawn
        # A greedy request is one with top_k = 1; its argmax must not depend on how a softmax rounds.
        return torch.where(self.info.top_ks[:, None] == 1, logits.argmax(-1), drawn)

    def _draw(self, logits: torch.Tensor, positions: torch.Tensor, per_request: int) -> torch.Tensor:
        """One token a row; logits [R, V], request r owning rows r*per_request…"""

        def of_row(parameter: torch.Tensor) -> torch.Tensor:
            return parameter.repeat_interleave(per_request, 0)

        info = self.info
        temperatures = of_row(info.temperatures)
        top_ks, top_ps, min_ps = (of_row(parameter) for parameter in (info.top_ks, info.top_ps, info.min_ps))
        seed = None if info.sampling_seed is None else of_row(info.sampling_seed)
        plain = not (info.need_top_k_sampling or info.need_top_p_sampling or info.need_min_p_sampling)

        def drawn(part: slice) -> torch.Tensor:
            probs = (logits[part] / temperatures[part]).softmax(-1)
            if plain and seed is None:
                return torch.multinomial(probs, 1)[:, 0]
            return top_k_top_p_min_p_sampling_from_probs_torch(
                probs,
                top_ks[part],
                top_ps[part],
                min_ps[part],
                info.need_min_p_sampling,
                None if seed is None else seed[part],
                positions[part],
                max_top_k=info.max_top_k,
            ).to(torch.int64)

        return in_parts(drawn, *logits.shape)


def apply_logit_rules(logits: torch.Tensor, info) -> None:
    """Add logit bias and penalties to `logits` [B, N, V], in place, as SGLang does before sampling.

    Penalties are those of the committed text, so they are right at the root only (see `path_free_rows`).
    """
    if info.acc_additive_penalties is not None:
        logits.add_(info.acc_additive_penalties[:, None])
    if info.acc_scaling_penalties is not None:
        scale = info.acc_scaling_penalties[:, None]
        logits.copy_(torch.where(logits > 0, logits / scale, logits * scale))
    if info.logit_bias is not None:
        logits.add_(info.logit_bias[:, None])


def path_dependent(params: Any) -> bool:
    """Whether a request's next distribution depends on tokens drafted this round; params: its SamplingParams."""
    return (
        params.frequency_penalty != 0
        or params.presence_penalty != 0
        or params.repetition_penalty != 1
        or params.min_new_tokens > 0
    )


def path_free_rows(reqs, device: torch.device) -> torch.Tensor | None:
    """[B] bool: the `path_dependent` requests; None if there are none. They commit one token a round, which keeps
    them exact.
    """
    rows = [path_dependent(req.sampling_params) for req in reqs]
    return host_values(rows, device) if any(rows) else None


def accept(tree: TokenTree, choice: TargetChoice, max_depth: int, single: torch.Tensor | None) -> Acceptance:
    """Walk the tree by the target's choices; requests in `single` [B] bool stop at the root.

    On the CPU choices are made only where the walk arrives; on an accelerator at all nodes, without a host sync.
    """
    if single is not None:  # no choice equals a missing token, so nothing leads away from the root
        tree = replace(tree, tokens=tree.tokens.where(~single[:, None], NONE))
    if tree.tokens.device.type == "cpu" and not choice.info.is_all_greedy:
        return walk(tree, choice, max_depth)
    return follow(tree, choice(None), max_depth)
