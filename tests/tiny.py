"""Tiny random models on disk: a Llama target, and heads of each kind that fit it."""

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from jetspec_sglang.drafters.autoregressive_head import AutoregressiveHead
from jetspec_sglang.drafters.causal_head import CausalParallelHead
from jetspec_sglang.drafters.checkpoint import write_head
from jetspec_sglang.drafters.head_config import (
    AutoregressiveConfig,
    CorrectorConfig,
    HeadConfig,
    SpecBlockConfig,
)
from jetspec_sglang.drafters.spec_block_head import SpecBlockHead

VOCAB = 512


def tiny_target(
    folder: Path, *, seed: int = 0, context: int = 512, layers: int = 3, head_dim: int = 16
) -> Path:
    """A random Llama (hidden 64) of `VOCAB` tokens, fp32, without a tokenizer. Its logits are spread enough
    that greedy decoding has no near-ties."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=head_dim,
        max_position_embeddings=context,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
        dtype="float32",
        initializer_range=0.2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


SIZES: dict = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "heads": 4,
    "kv_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "vocab_size": VOCAB,
}
OF_MASKS: dict = SIZES | {"target_layer_ids": (0, 1), "mask_token_id": 3, "max_position_embeddings": 4096}


def tiny_head(
    folder: Path,
    *,
    seed: int = 0,
    layers: int = 2,
    block_size: int = 6,
    target_layers: int = 3,
    head_dim: int = 16,
    causal: bool = True,
    corrector: CorrectorConfig | None = None,
    shifted: bool = False,
) -> Path:
    """A random one-pass head for `tiny_target`, in the published format (which rounds it to bf16)."""
    torch.manual_seed(seed)
    config = HeadConfig(
        **OF_MASKS,
        layers=layers,
        head_dim=head_dim,
        block_size=block_size,
        causal=causal,
        num_target_layers=target_layers,
        corrector=corrector,
        shifted=shifted,
    )
    head = CausalParallelHead(config)
    if corrector is not None:  # a new one would change nothing
        last = {"domino": "table", "treeflash": "d"}.get(corrector.kind, "keys")
        torch.nn.init.normal_(getattr(head.path_corrector, last).weight)
    write_head(folder, config, head.state_dict(), "A random head for tests.")
    return folder


def tiny_eagle_head(
    folder: Path,
    *,
    seed: int = 0,
    draft_vocab: int | None = 128,
    block_size: int = 6,
    target_layers: int = 4,
    head_dim: int = 16,
) -> Path:
    """A random autoregressive head for a `tiny_target` of four layers: it reads the outputs of the first three, and
    SGLang has no seam behind the last. `draft_vocab` None: the target's lm_head.

    It was trained, as it were, on texts of 32 tokens.
    """
    torch.manual_seed(seed)
    config = AutoregressiveConfig(
        **SIZES,
        head_dim=head_dim,
        block_size=block_size,
        max_position_embeddings=32,
        draft_vocab_size=draft_vocab,
        target_layer_ids=(0, 1, 2),
        num_target_layers=target_layers,
    )
    head = AutoregressiveHead(config)
    if config.maps_vocabulary:
        head.set_draft_vocabulary(torch.randperm(VOCAB)[:draft_vocab].sort().values)
    write_head(folder, config, head.state_dict(), "A random head for tests.")
    return folder


def tiny_spec_block_head(
    folder: Path,
    *,
    seed: int = 0,
    positions: int = 2,
    block_size: int = 6,
    target_layers: int = 4,
    head_dim: int = 16,
) -> Path:
    """A random spec-block head of two layers for a `tiny_target`, which drafts `positions` depths a forward."""
    torch.manual_seed(seed)
    config = SpecBlockConfig(
        **OF_MASKS,
        layers=2,
        head_dim=head_dim,
        block_size=block_size,
        num_target_layers=target_layers,
        positions=positions,
        ranks=4,
    )
    write_head(folder, config, SpecBlockHead(config).state_dict(), "A random head for tests.")
    return folder
