"""Whole runs on a tiny target: resume, overfit, growing data, export."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from tiny_data import MASK, write_shard

from jetspec_sglang.drafters.checkpoint import load_head_tensors, read_head_config
from jetspec_sglang.drafters.training import state
from jetspec_sglang.drafters.training.config import FitConfig, load_config
from jetspec_sglang.drafters.training.export import export
from jetspec_sglang.drafters.training.fit import Run, fit


def settings(target_folder, data_folder, output, **changes) -> FitConfig:
    head = {"layers": 2, "block_size": 5, "mask_token_id": MASK}
    base = {"target": target_folder, "data": data_folder, "output": output, "head": head, "steps": 6}
    base |= {
        "batch_anchors": 24,
        "anchors_per_sequence": 8,
        "dtype": "float32",
        "eval_tokens": 20,
        "ema": 0.9,
    }
    return FitConfig.model_validate(base | changes)


def interrupted_after(steps: int, config: FitConfig) -> None:
    """Run ``fit`` until SIGTERM arrives in the middle of that step."""
    plain_step = Run.step

    def step(self, batch):
        if self.progress.step == steps - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return plain_step(self, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "step", step)
        fit(config)


def test_an_interrupted_run_ends_with_the_same_weights(target_folder, data_folder, tmp_path):
    fit(settings(target_folder, data_folder, tmp_path / "whole"))
    config = settings(target_folder, data_folder, tmp_path / "parts")
    interrupted_after(3, config)
    assert state.load(config.output)["progress"]["step"] == 3
    fit(config)

    whole, parts = state.load(tmp_path / "whole"), state.load(tmp_path / "parts")
    assert parts["progress"]["step"] == 6
    for part in ("head", "ema"):
        for name, tensor in whole[part].items():
            assert torch.equal(tensor, parts[part][name]), (part, name)


def test_sigterm_saves_and_returns(target_folder, data_folder, tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    config = settings(target_folder, data_folder, tmp_path / "run", steps=10**6)
    interrupted_after(3, config)
    assert state.load(config.output)["progress"]["step"] == 3
    assert signal.getsignal(signal.SIGTERM) is before
    assert not list(config.output.glob("*.partial"))


def test_overfits_one_sequence(target_folder, tmp_path):
    """The overfit gate: every depth of every block of one text is learned by heart."""
    data = tmp_path / "data"
    data.mkdir()
    shard = write_shard(data / "shard-00000.safetensors", target_folder, sequences=1, seed=4)
    (data / "heldout-00000.safetensors").write_bytes(shard.read_bytes())
    config = settings(
        target_folder,
        data,
        tmp_path / "run",
        steps=250,
        learning_rate=3e-3,
        gamma=0,
        hard_weight=1.0,
        ema=0.0,
    )
    result = fit(config)
    assert result["accuracy"] == [1.0, 1.0, 1.0, 1.0]
    assert result["tau_chain"] == result["tau_tree16"] == 5.0
    lines = [json.loads(line) for line in (config.output / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < losses[0] / 10


def test_export_reads_back(target_folder, data_folder, tmp_path):
    fit(settings(target_folder, data_folder, tmp_path / "run"))
    head = export(tmp_path / "run", tmp_path / "head")
    saved = state.load(tmp_path / "run")
    assert read_head_config(head).model_dump() == saved["head_config"]
    for name, tensor in load_head_tensors(head).items():
        assert torch.equal(tensor, saved["ema"][name].bfloat16())
    card = (head / "README.md").read_text()
    assert "random prompts" in card
    assert f"{saved['evaluation']['tau_tree16']:.2f}" in card


def test_a_checkpoint_of_another_head_is_refused(target_folder, data_folder, tmp_path):
    fit(settings(target_folder, data_folder, tmp_path / "run", steps=1))
    other = settings(target_folder, data_folder, tmp_path / "run", steps=2)
    other = other.model_copy(update={"head": other.head.model_copy(update={"block_size": 4})})
    with pytest.raises(ValueError, match="another head"):
        fit(other)


def test_bad_settings_are_refused(target_folder, data_folder, tmp_path):
    for changes, message in (
        ({"learnig_rate": 1}, "learnig_rate"),
        ({"steps": None}, "exactly one"),
        ({"minutes": 1}, "exactly one"),
    ):
        with pytest.raises(ValidationError, match=message):
            settings(target_folder, data_folder, tmp_path, **changes)


def test_the_shipped_recipe_is_valid():
    config = load_config(Path(__file__).parents[2] / "examples" / "train" / "smollm2.yaml")
    assert config.fit.head.block_size == 8
    assert config.target_layer_ids == (1, 8, 14, 20, 27)
