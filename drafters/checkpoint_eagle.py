"""``config.json`` and tensors of EAGLE-3 heads, as SGLang's `LlamaForCausalLMEagle3` reads them.

A Llama config of one layer and:

    draft_vocab_size                                tokens of the head's own lm_head; null: the target's lm_head
    eagle_config.eagle_aux_hidden_state_layer_ids   taps; without, those that EAGLE-3 was published with
    block_size                                      ours: the depth it was trained for, and one for the anchor

Tensors: the layer is called midlayer or layers.0, with or without "model." in front. d2t [draft vocabulary] says
what to add to a draft id to get the target's, t2d [vocabulary] which target ids are in the draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from .checkpoint_values import build, common_values, need, refuse_common
from .head_config import AutoregressiveConfig
from .head_tensors import HeadError

ARCHITECTURE = "LlamaForCausalLMEagle3"
TRAINED_STEPS = 7  # as EAGLE-3 heads are published; their configs don't say
LLAMA_ROPE_THETA = 10000.0  # of a config without one, as for any Llama
EMBEDDING = "embed_tokens.weight"

# Variants that SGLang reads and `AutoregressiveHead` doesn't compute.
UNSUPPORTED = ("norm_before_fc", "fc_norm", "use_aux_norm", "norm_output", "bias", "tie_word_embeddings")


def is_eagle(raw: dict[str, Any]) -> bool:
    return ARCHITECTURE in (raw.get("architectures") or [])


def parse_eagle_config(raw: dict[str, Any], where: str) -> AutoregressiveConfig:
    """A published config as plain data; ``where`` names it in errors."""
    eagle = raw.get("eagle_config") or {}
    if not isinstance(eagle, dict):
        raise HeadError(f"{where}: eagle_config is {type(eagle).__name__}, not an object")
    refuse_common(raw, where)
    for key in UNSUPPORTED:
        if raw.get(key) or eagle.get(key):
            raise HeadError(f"{where}: {key} is not supported")
    if eagle.get("use_aux_hidden_state") is False:
        raise HeadError(f"{where}: use_aux_hidden_state is false, but drafting needs the target's features")
    if need(raw, "num_hidden_layers", where) != 1:
        raise HeadError(f"{where}: num_hidden_layers is {raw['num_hidden_layers']}, but only 1 is supported")
    if raw.get("target_hidden_size", raw.get("hidden_size")) != raw.get("hidden_size"):
        raise HeadError(f"{where}: target_hidden_size differs from hidden_size, there is no adapter for that")
    values = common_values(raw, where)
    if values["rope_theta"] is None:
        values["rope_theta"] = LLAMA_ROPE_THETA
    return build(
        AutoregressiveConfig,
        where,
        values,
        block_size=raw.get("block_size", TRAINED_STEPS + 1),
        draft_vocab_size=raw.get("draft_vocab_size"),
        target_layer_ids=eagle.get("eagle_aux_hidden_state_layer_ids"),
        num_target_layers=raw.get("num_target_layers"),
    )


def published_eagle_config(config: AutoregressiveConfig) -> dict[str, Any]:
    taps = config.target_layer_ids
    eagle: dict[str, Any] = {"use_aux_hidden_state": True}
    if taps is not None:
        eagle["eagle_aux_hidden_state_layer_ids"] = list(taps)
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "eagle_config": eagle,
        "draft_vocab_size": config.draft_vocab_size,
        "num_hidden_layers": 1,
    }


def canonical_names(config: AutoregressiveConfig, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under the names of `AutoregressiveHead`, without what it doesn't have: the copy of the target's
    embedding, and maps between equal vocabularies."""
    unused = {EMBEDDING} if config.maps_vocabulary else {EMBEDDING, "d2t", "t2d"}
    named = {}
    for name, tensor in tensors.items():
        name = name.removeprefix("model.")
        if name.startswith("layers.0."):
            name = "midlayer." + name.removeprefix("layers.0.")
        if name not in unused:
            named[name] = tensor
    return named


def check_vocabulary_maps(config: AutoregressiveConfig, tensors: Mapping[str, Tensor], where: str) -> None:
    """Raise HeadError unless d2t and t2d name the same tokens, each once."""
    if not config.maps_vocabulary:
        return
    import torch

    offsets = tensors["d2t"]
    tokens = offsets + torch.arange(len(offsets))
    if not bool(((tokens >= 0) & (tokens < config.vocab_size)).all()):
        raise HeadError(f"{where}: d2t leads out of the target's vocabulary of {config.vocab_size}")
    if len(tokens.unique()) != len(tokens):
        raise HeadError(f"{where}: d2t leads from several draft tokens to the same target token")
    allowed = tensors["t2d"].bool()
    if int(allowed.sum()) != len(tokens) or not bool(allowed[tokens].all()):
        raise HeadError(f"{where}: t2d and d2t name different tokens")
