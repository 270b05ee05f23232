"""Tiny random models on disk: a Llama target and a causal-parallel head that fits it."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

VOCAB = 512


def tiny_target(folder: Path, *, seed: int = 0, context: int = 512, layers: int = 3) -> Path:
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
        max_position_embeddings=context,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
        dtype="float32",
        initializer_range=0.2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
