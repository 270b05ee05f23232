"""A head that starts from the target's last layers instead of from noise.

Layer i of the head takes the weights of target layer T-layers+i, and ``fc`` passes the last tap through, so
the context keys and values start as (nearly) those of the target. Two differences of architecture are
bridged:

* The head's context path has no input_layernorm. The target's norm weight is therefore folded into the
  columns of q/k/v and the head's own norms start at 1; both paths then compute the same projection.
* The head normalises queries and keys per head (Qwen3 style) where Llama does not. ``q_norm`` and
  ``k_norm`` start at the target's root-mean-square query and key of that layer, so attention logits keep
  their temperature. Where the target has such norms, they are copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..causal_head import CausalParallelHead
from ..head_config import HeadConfig
from .config import HeadShape


@dataclass(frozen=True)
class Target:
    """The frozen parts that training needs for good, and the whole model for the start."""

    model: nn.Module
    embedding: Tensor  # [V, H]
    lm_head: Tensor  # [V, H]


def load_target(path: Path, dtype: torch.dtype) -> Target:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval().requires_grad_(False)
    embedding = model.get_input_embeddings().weight.detach()
    return Target(model, embedding, model.get_output_embeddings().weight.detach().to(dtype))


def head_config(shape: HeadShape, target_config, target_layer_ids: tuple[int, ...]) -> HeadConfig:
    """Sizes of the target, freedom of ``shape``, taps of the data."""
    c = target_config
    return HeadConfig(
        hidden_size=c.hidden_size,
        intermediate_size=c.intermediate_size,
        layers=shape.layers,
        heads=c.num_attention_heads,
        kv_heads=c.num_key_value_heads,
        head_dim=getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads,
        rms_norm_eps=c.rms_norm_eps,
        rope_theta=c.rope_parameters["rope_theta"],
        vocab_size=c.vocab_size,
        block_size=shape.block_size,
        target_layer_ids=target_layer_ids,
        mask_token_id=shape.mask_token_id,
        causal=shape.causal,
        num_target_layers=c.num_hidden_layers,
        max_position_embeddings=c.max_position_embeddings,
    )


@torch.no_grad()
def initialise(head: CausalParallelHead, target: nn.Module, tokens: Tensor) -> None:
    """Fill ``head`` in place from a Llama- or Qwen3-like ``target``; ``tokens`` [n] are real text."""
    config, decoder = head.config, _decoder(target)
    layers = decoder.layers
    source = range(len(layers) - config.layers, len(layers))
    scales = _qk_rms(target, source, tokens)
    for mine, index in zip(head.layers, source, strict=True):
        theirs = layers[index]
        fold = theirs.input_layernorm.weight
        for name in ("q_proj", "k_proj", "v_proj"):
            getattr(mine.self_attn, name).weight.copy_(getattr(theirs.self_attn, name).weight * fold)
        mine.self_attn.o_proj.weight.copy_(theirs.self_attn.o_proj.weight)
        for name, scale in zip(("q_norm", "k_norm"), scales[index], strict=True):
            norm = getattr(theirs.self_attn, name, None)
            getattr(mine.self_attn, name).weight.copy_(
                norm.weight if norm is not None else torch.tensor(scale)
            )
        mine.mlp.load_state_dict({name: theirs.mlp.state_dict()[name] for name in mine.mlp.state_dict()})
        mine.input_layernorm.weight.fill_(1.0)
        mine.post_attention_layernorm.weight.copy_(theirs.post_attention_layernorm.weight)
    head.fc.weight.zero_()
    head.fc.weight[:, -config.hidden_size :].fill_diagonal_(1.0)
    head.hidden_norm.weight.fill_(1.0)
    head.norm.weight.copy_(decoder.norm.weight)


def _decoder(target: nn.Module) -> Any:
    """LlamaModel, Qwen3Model, …: the same attributes, but no class in common that declares them."""
    return target.model


def _qk_rms(target: nn.Module, indices: range, tokens: Tensor) -> dict[int, tuple[float, float]]:
    """Root mean square of a query and of a key component, a layer each, over real text."""
    seen: dict[tuple[int, str], float] = {}
    hooks, layers = [], _decoder(target).layers
    for index in indices:
        for name in ("q_proj", "k_proj"):

            def note(_module, _inputs, output, key=(index, name)) -> None:
                seen[key] = output.float().pow(2).mean().sqrt().item()

            hooks.append(getattr(layers[index].self_attn, name).register_forward_hook(note))
    target(input_ids=tokens[None])
    for hook in hooks:
        hook.remove()
    return {index: (seen[index, "q_proj"], seen[index, "k_proj"]) for index in indices}
