"""A tiny head, a tiny target on disk and shards of its own greedy text: the whole of training in seconds."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from jetspec_sglang.drafters.head_config import AutoregressiveConfig, HeadConfig, SpecBlockConfig

VOCAB, MASK = 96, 3


def head_config(**changes) -> HeadConfig:
    return HeadConfig(
        **{
            "hidden_size": 32,
            "intermediate_size": 48,
            "layers": 2,
            "heads": 4,
            "kv_heads": 2,
            "head_dim": 8,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e4,
            "vocab_size": VOCAB,
            "block_size": 5,
            "target_layer_ids": (0, 2),
            "mask_token_id": MASK,
            "causal": True,
            "num_target_layers": 4,
            "max_position_embeddings": 128,
        }
        | changes
    )


def autoregressive_config(**changes) -> AutoregressiveConfig:
    """As `head_config`, what it has in common."""
    block_only = {"layers", "mask_token_id", "causal", "corrector", "shifted"}
    return AutoregressiveConfig(**head_config().model_dump(exclude=block_only) | changes)


def spec_block_config(**changes) -> SpecBlockConfig:
    """As `head_config`, what it has in common; two forwards of two positions."""
    common = head_config().model_dump(exclude={"causal", "corrector", "shifted"})
    return SpecBlockConfig(**common | {"positions": 2, "ranks": 3} | changes)


def write_target(folder: Path) -> Path:
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@torch.no_grad()
def write_shard(path: Path, target: Path, sequences: int, seed: int, length: int = 24) -> Path:
    """Random prompts of 4..8 tokens, continued greedily by the target, in the format of ``shards``."""
    model = LlamaForCausalLM.from_pretrained(target)
    rng = torch.Generator().manual_seed(seed)
    taps = (0, 2)
    rows: dict[str, list[torch.Tensor]] = {"tokens": [], "taps": [], "topk_ids": [], "topk_logprobs": []}
    prompt_lens = []
    for _ in range(sequences):
        prompt = int(torch.randint(4, 9, (), generator=rng))
        tokens = torch.randint(4, VOCAB, (1, prompt), generator=rng)
        while tokens.shape[1] < length:
            tokens = torch.cat((tokens, model(tokens).logits[:, -1:].argmax(-1)), dim=1)
        out = model(tokens, output_hidden_states=True)
        top = out.logits[0].log_softmax(-1).topk(16)
        valid = (torch.arange(length) >= prompt - 1)[:, None]
        rows["tokens"].append(tokens[0].int())
        rows["taps"].append(torch.cat([out.hidden_states[tap + 1][0] for tap in taps], dim=-1).bfloat16())
        rows["topk_ids"].append(top.indices.int() * valid)
        rows["topk_logprobs"].append(top.values.half() * valid)
        prompt_lens.append(prompt)
    tensors = {name: torch.cat(parts) for name, parts in rows.items()}
    tensors["offsets"] = torch.arange(sequences + 1) * length
    tensors["prompt_lens"] = torch.tensor(prompt_lens, dtype=torch.int32)
    meta = {"target_layer_ids": taps, "hidden_size": 32, "target": "tiny", "source": "random prompts"}
    save_file(tensors, path, metadata={"jetspec": json.dumps(meta)})
    return path
