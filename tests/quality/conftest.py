from pathlib import Path

import pytest
import tiny
import torch
from tiny_chat import write_tokenizer
from transformers import AutoModelForCausalLM

from jetspec_sglang.drafters.head_config import CorrectorConfig
from jetspec_sglang.drafters.quality.heads import LoadedHead, load_head
from jetspec_sglang.drafters.training.generate import TransformersGenerator

LAYERS = 4
CORRECTOR = CorrectorConfig(kind="gru", rank=8, state_size=16, candidates=24)


@pytest.fixture(scope="session")
def target(tmp_path_factory) -> Path:
    """A tiny chat model."""
    folder = tiny.tiny_target(tmp_path_factory.mktemp("target"), layers=LAYERS)
    return write_tokenizer(folder, tiny.VOCAB)


@pytest.fixture(scope="session")
def folders(tmp_path_factory) -> dict[str, Path]:
    """Heads of each kind; their blocks and taps differ."""
    root = tmp_path_factory.mktemp("heads")
    return {
        "causal": tiny.tiny_head(root / "causal", target_layers=LAYERS, block_size=5),
        "diffusion": tiny.tiny_head(root / "diffusion", target_layers=LAYERS, causal=False, seed=1),
        "corrected": tiny.tiny_head(root / "corrected", target_layers=LAYERS, seed=2, corrector=CORRECTOR),
        "blocks": tiny.tiny_spec_block_head(root / "blocks", target_layers=LAYERS, seed=3),
        "eagle": tiny.tiny_eagle_head(root / "eagle", draft_vocab=None, block_size=5),
    }


@pytest.fixture(scope="session")
def heads(folders) -> list[LoadedHead]:
    return [load_head(label, folder, LAYERS, torch.float32, "cpu") for label, folder in folders.items()]


@pytest.fixture(scope="session")
def generator(target) -> TransformersGenerator:
    """The target as the command loads it. Its attention is causal only where a mask says so."""
    return TransformersGenerator(target, (0, 1, 2), torch.float32)


@pytest.fixture(scope="session")
def plain_model(target):
    """The target as transformers loads it."""
    return AutoModelForCausalLM.from_pretrained(target).eval()
