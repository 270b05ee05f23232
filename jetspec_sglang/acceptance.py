"""Which rule accepts each request's drafts, and accepting a batch whose requests have different ones.

`match` serves every request. `rejection` and `traversal` are for requests that sample: their trees are drawn at
the request's own temperature, and acceptance asks for the target's whole law at every node, not for one token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from .sampling import TargetChoice, accept, path_dependent
from .target_law import target_law
from .tree import Acceptance, RandomDice, TokenTree, accept_rejection, accept_traversal, host_values
from .tree_settings import TreeSettings

RULES = {"rejection": accept_rejection, "traversal": accept_traversal}


def in_effect(settings: TreeSettings, params: Any) -> TreeSettings:
    """A request's settings with the rule that serves it; params: SGLang's SamplingParams.

    A greedy request (top_k 1, which SGLang makes of temperature 0 too) has one right token and nothing to draw,
    and one that depends on drafted tokens (penalties, minimum length) stops at the root.
    """
    if settings.acceptance == "match" or (params.top_k != 1 and not path_dependent(params)):
        return settings
    return replace(settings, acceptance="match")


@dataclass(frozen=True)
class SamplingRows:
    """SGLang's SamplingBatchInfo, as far as sampling goes, of some requests of its batch."""

    temperatures: torch.Tensor
    top_ks: torch.Tensor
    top_ps: torch.Tensor
    min_ps: torch.Tensor
    sampling_seed: torch.Tensor | None
    is_all_greedy: bool
    is_any_greedy: bool
    need_top_k_sampling: bool
    need_top_p_sampling: bool
    need_min_p_sampling: bool
    max_top_k: int | None

    @classmethod
    def of(cls, info: Any, index: torch.Tensor) -> SamplingRows:
        """Facts about the whole batch stay true of a part, or cost no more than a filter that filters nothing."""
        seed = info.sampling_seed
        return cls(
            temperatures=info.temperatures[index],
            top_ks=info.top_ks[index],
            top_ps=info.top_ps[index],
            min_ps=info.min_ps[index],
            sampling_seed=None if seed is None else seed[index],
            is_all_greedy=info.is_all_greedy,
            is_any_greedy=info.is_any_greedy,
            need_top_k_sampling=info.need_top_k_sampling,
            need_top_p_sampling=info.need_top_p_sampling,
            need_min_p_sampling=info.need_min_p_sampling,
            max_top_k=info.max_top_k,
        )


def accept_each(
    tree: TokenTree,
    logits: torch.Tensor,
    positions: torch.Tensor,
    info: Any,
    max_depth: int,
    single: torch.Tensor | None,
    rules: list[str],
) -> Acceptance:
    """Accept every request by its own rule, given what `in_effect` allows it.

    logits: [B, N, V] fp32, logit rules applied; positions: [B, N] int64; single: [B] bool or None, requests that
    stop at the root.
    """
    if len(set(rules)) == 1:
        return _accept(rules[0], tree, logits, positions, info, max_depth, single)
    parts, order = [], []
    for rule in dict.fromkeys(rules):
        rows = [row for row, own in enumerate(rules) if own == rule]
        index = host_values(rows, logits.device)
        alone = None if single is None else single[index]
        part = (tree.rows(index), logits[index], positions[index], SamplingRows.of(info, index))
        parts.append(_accept(rule, *part, max_depth, alone))
        order += rows
    back = host_values(order, logits.device).argsort()
    columns = zip(*((part.path, part.lengths, part.tokens) for part in parts), strict=True)
    return Acceptance(*(torch.cat(column)[back] for column in columns))


def _accept(rule, tree, logits, positions, info, max_depth, single) -> Acceptance:
    if rule == "match":
        return accept(tree, TargetChoice(logits, positions, info), max_depth, single)
    return RULES[rule](tree, target_law(logits, info), max_depth, RandomDice())
