"""One text, learned by heart by a head that is then asked to draft it: what is wrong in training shows at once."""

import json
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from jetspec_sglang.drafters.training import fit
from jetspec_sglang.drafters.training.config import TrainConfig
from jetspec_sglang.drafters.training.export import export
from jetspec_sglang.drafters.training.generate import TransformersGenerator
from jetspec_sglang.drafters.training.shards import Sequence, write_shard

CORRECTED = "causal_parallel with a path corrector"
KINDS = ("causal_parallel", "diffusion", "autoregressive", "spec_block", CORRECTED)
BLOCK, ROUNDS = 5, 7
NEW_TOKENS = 1 + ROUNDS * BLOCK  # the first one is the prefill's
TAPS = (0, 1)
VOCAB = 24
PROMPT = [17, 5, 9, 11, 23, 8, 15, 12]


def make_target(folder: Path) -> Path:
    """A random Llama of so few tokens that none of them tells what follows: a head must read its context."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def answer(target: Path) -> Sequence:
    """The target's greedy continuation of the prompt, with its features; a block longer than is asked for."""
    generator = TransformersGenerator(target, TAPS, torch.float32)
    [sequence] = generator.answer([PROMPT], NEW_TOKENS + BLOCK, {VOCAB})
    pairs = {tuple(pair) for pair in sequence.tokens.unfold(0, 2, 1).tolist()}
    assert len(pairs) > 1.5 * len({first for first, _ in pairs}), (
        "a token alone tells the next: too easy a text"
    )
    return sequence


def learn(kind: str, target: Path, sequence: Sequence, work: Path) -> Path:
    """Train a head on the one text until it knows it; its folder."""
    meta = {"target_layer_ids": TAPS, "hidden_size": 64, "target": "tiny", "source": "one text"}
    (work / "features").mkdir(parents=True)
    write_shard(work / "features" / "shard-00000.safetensors", [sequence], json.loads(json.dumps(meta)))
    head = {"drafter": "causal_parallel" if kind == CORRECTED else kind, "block_size": BLOCK}
    if kind == CORRECTED:
        head["corrector"] = {"kind": "gru", "rank": 16, "state_size": 16, "candidates": 8}
    if kind == "spec_block":
        head |= {"positions": 2, "ranks": 3}
    head |= {"layers": 1} if kind == "autoregressive" else {"layers": 2, "mask_token_id": 3}
    settings = {
        "steps": 300,
        "objective": "cross_entropy",
        "learning_rate": 3e-3,
        "dtype": "float32",
        "tensorboard": False,
    }
    raw = {"target": str(target), "work": work, "head": head, "fit": settings}
    config = TrainConfig.model_validate(raw | {"features": {"target_layer_ids": TAPS}})
    fit.run(config, target)
    return export(config)
