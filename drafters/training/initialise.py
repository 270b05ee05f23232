"""Heads that start from the target's last layers instead of from noise.

Layer i of a block head takes the weights of target layer T-layers+i, and ``fc`` passes the last tap through, so
the context keys and values start as (nearly) those of the target. Two differences of architecture are bridged:

* The head's context path has no input_layernorm. The target's norm weight is therefore folded into the
  columns of q/k/v and the head's own norms start at 1; both paths then compute the same projection.
* The head normalises queries and keys per head (Qwen3 style) where Llama does not. ``q_norm`` and
  ``k_norm`` start at the target's root-mean-square query and key of that layer, so attention logits keep
  their temperature. Where the target has such norms, they are copied.

The one layer of an autoregressive head is the target's last one on the feature half of its input; the embedding
half starts at zero. It has no per-head norms, so those of the target are folded in at their mean effect.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..autoregressive_head import AutoregressiveHead
from ..causal_head import LayeredHead
from .student import DraftHead
from .target import decoder


@torch.no_grad()
def initialise(head: DraftHead, target: nn.Module, tokens: Tensor) -> None:
    """Fill ``head`` in place from a Llama- or Qwen3-like ``target``; ``tokens`` [n] are real text."""
    if isinstance(head, AutoregressiveHead):
        _autoregressive(head, target, tokens)
    else:
        _block(head, target, tokens)
    head.fc.weight.zero_()
    head.fc.weight[:, -head.config.hidden_size :].fill_diagonal_(1.0)
    head.norm.weight.copy_(decoder(target).norm.weight)


def _block(head: LayeredHead, target: nn.Module, tokens: Tensor) -> None:
    layers = decoder(target).layers
    source = range(len(layers) - len(head.layers), len(layers))
    scales = _qk_rms(target, source, tokens)
    for mine, index in zip(head.layers, source, strict=True):
        theirs = layers[index]
        fold = theirs.input_layernorm.weight
        for name in ("q_proj", "k_proj", "v_proj"):
            getattr(mine.self_attn, name).weight.copy_(getattr(theirs.self_attn, name).weight * fold)
        for name, scale in zip(("q_norm", "k_norm"), scales[index], strict=True):
            norm = getattr(theirs.self_attn, name, None)
            getattr(mine.self_attn, name).weight.copy_(
                norm.weight if norm is not None else torch.tensor(scale)
            )
        mine.input_layernorm.weight.fill_(1.0)
        _copy_rest(mine, theirs)
    head.hidden_norm.weight.fill_(1.0)


def _autoregressive(head: AutoregressiveHead, target: nn.Module, tokens: Tensor) -> None:
    layers, mine, hidden = decoder(target).layers, head.midlayer, head.config.hidden_size
    last, theirs = len(layers) - 1, layers[-1]
    for name, rms in zip("qk", _qk_rms(target, range(last, last + 1), tokens)[last], strict=True):
        weight = getattr(theirs.self_attn, f"{name}_proj").weight
        norm = getattr(theirs.self_attn, f"{name}_norm", None)
        if norm is not None:
            weight = weight * norm.weight.repeat(len(weight) // len(norm.weight))[:, None] / rms
        getattr(mine.self_attn, f"{name}_proj").weight.zero_()[:, hidden:].copy_(weight)
    mine.self_attn.v_proj.weight.zero_()[:, hidden:].copy_(theirs.self_attn.v_proj.weight)
    mine.input_layernorm.weight.fill_(1.0)
    mine.hidden_norm.weight.copy_(theirs.input_layernorm.weight)
    _copy_rest(mine, theirs)


def _copy_rest(mine: Any, theirs: Any) -> None:
    mine.self_attn.o_proj.weight.copy_(theirs.self_attn.o_proj.weight)
    mine.mlp.load_state_dict({name: theirs.mlp.state_dict()[name] for name in mine.mlp.state_dict()})
    mine.post_attention_layernorm.weight.copy_(theirs.post_attention_layernorm.weight)


def _qk_rms(target: nn.Module, indices: range, tokens: Tensor) -> dict[int, tuple[float, float]]:
    """Root mean square of a query and of a key component, a layer each, over real text."""
    seen: dict[tuple[int, str], float] = {}
    hooks, layers = [], decoder(target).layers
    for index in indices:
        for name in ("q_proj", "k_proj"):

            def note(_module, _inputs, output, key=(index, name)) -> None:
                seen[key] = output.float().pow(2).mean().sqrt().item()

            hooks.append(getattr(layers[index].self_attn, name).register_forward_hook(note))
    target(input_ids=tokens[None])
    for hook in hooks:
        hook.remove()
    return {index: (seen[index, "q_proj"], seen[index, "k_proj"]) for index in indices}
