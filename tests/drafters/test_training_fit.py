"""Whole runs on a tiny target: resume, overfit, growing data, refusals, export."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tiny_data import MASK, write_shard

from jetspec_sglang.drafters.checkpoint import load_head_tensors, read_head_config
from jetspec_sglang.drafters.training import fit, metrics, state
from jetspec_sglang.drafters.training.config import TrainConfig
from jetspec_sglang.drafters.training.errors import TrainError
from jetspec_sglang.drafters.training.export import export
from jetspec_sglang.drafters.training.loss import teacher_log_probs

KINDS = ("causal_parallel", "diffusion", "autoregressive", "spec_block")


def head(kind: str = "causal_parallel", block_size: int = 5) -> dict:
    shape = {"drafter": kind, "block_size": block_size}
    if kind == "spec_block":
        shape |= {"positions": 2, "ranks": 3}
    return shape | ({"layers": 1} if kind == "autoregressive" else {"layers": 2, "mask_token_id": MASK})


def settings(data_folder: Path, work: Path, **changes) -> TrainConfig:
    """A run of 6 steps; keys that are not sections are of `fit`."""
    sections = {"head": head(), "data": {}, "features": {}, "seed": 0}
    given = {key: changes.pop(key) for key in sections if key in changes}
    base = {"steps": 6, "batch_anchors": 24, "anchors_per_sequence": 8, "dtype": "float32", "eval_tokens": 20}
    base |= {"ema": 0.9, "tensorboard": False}
    features = {"target_layer_ids": [0, 2], "folder": data_folder} | given.pop("features", {})
    raw = {"target": "tiny", "work": work, "head": head(), "features": features, "fit": base | changes}
    return TrainConfig.model_validate(raw | given)


def curve(config: TrainConfig) -> list[dict]:
    """What a run recorded, without what depends on the clock."""
    clock = ("minutes", "anchors_per_s")
    return [
        {key: value for key, value in record.items() if key not in clock}
        for record in metrics.read(config.run_folder)
    ]


def interrupted_after(steps: int, config: TrainConfig, target: Path) -> None:
    """Run ``fit`` until SIGTERM arrives in the middle of that step."""
    plain_step = fit.Run.step

    def step(self, batches):
        if self.progress.step == steps - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return plain_step(self, batches)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit.Run, "step", step)
        fit.run(config, target)


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_run_ends_with_the_same_weights(
    target_folder, data_folder, tmp_path, kind, monkeypatch
):
    monkeypatch.setattr(fit, "LOG_STEPS", 2)
    changes = {"head": head(kind), "accumulation": 2, "batch_anchors": 8}
    whole = settings(data_folder, tmp_path / "whole", **changes)
    fit.run(whole, target_folder)
    parts = settings(data_folder, tmp_path / "parts", **changes)
    interrupted_after(3, parts, target_folder)
    assert state.load(parts.run_folder)["progress"]["step"] == 3
    fit.run(parts, target_folder)

    expected, found = state.load(whole.run_folder), state.load(parts.run_folder)
    assert found["progress"]["step"] == 6
    for part in ("head", "ema"):
        for name, tensor in expected[part].items():
            assert torch.equal(tensor, found[part][name]), (part, name)
    assert curve(parts) == curve(whole)


RUN = """
import json, sys
from jetspec_sglang.drafters.training import fit
from jetspec_sglang.drafters.training.config import TrainConfig
fit.LOG_STEPS = 5
fit.run(TrainConfig.model_validate(json.loads(sys.argv[1])), sys.argv[2])
"""


def test_a_killed_run_goes_on_with_the_same_losses(target_folder, data_folder, tmp_path):
    """SIGKILL at a moment that nobody chose: some time after the first checkpoint."""

    def command(config: TrainConfig) -> list[str]:
        return [sys.executable, "-c", RUN, config.model_dump_json(), str(target_folder)]

    changes = {"steps": 200, "checkpoint_minutes": 1e-4, "eval_minutes": 1e-3}
    whole = settings(data_folder, tmp_path / "whole", **changes)
    killed = settings(data_folder, tmp_path / "killed", **changes)
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command(killed), env=env)
    while not (killed.run_folder / state.FILE).exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert state.load(killed.run_folder)["progress"]["step"] < 200
    subprocess.run(command(killed), env=env, check=True)
    subprocess.run(command(whole), env=env, check=True)

    def losses(config):
        return [record for record in curve(config) if "loss" in record]

    assert losses(killed) == losses(whole)
    assert [record["step"] for record in losses(whole)] == list(range(5, 201, 5))
    last, expected = state.load(killed.run_folder), state.load(whole.run_folder)
    assert all(torch.equal(tensor, last["head"][name]) for name, tensor in expected["head"].items())
    assert last["evaluation"] == expected["evaluation"]


def test_sigterm_saves_and_returns(target_folder, data_folder, tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    config = settings(data_folder, tmp_path, steps=10**6)
    interrupted_after(3, config, target_folder)
    assert state.load(config.run_folder)["progress"]["step"] == 3
    assert signal.getsignal(signal.SIGTERM) is before
    assert not list(config.run_folder.glob("*.partial"))


def test_a_finished_run_is_left_alone(target_folder, data_folder, tmp_path):
    config = settings(data_folder, tmp_path)
    first = fit.run(config, target_folder)
    lines = metrics.read(config.run_folder)
    assert fit.run(config, target_folder) == first
    assert metrics.read(config.run_folder) == lines


@pytest.mark.parametrize("kind", KINDS)
def test_overfits_one_sequence(target_folder, tmp_path, kind):
    """Every depth of every block of one text is learned by heart."""
    data = tmp_path / "data"
    data.mkdir()
    shard = write_shard(data / "shard-00000.safetensors", target_folder, sequences=1, seed=4)
    (data / "heldout-00000.safetensors").write_bytes(shard.read_bytes())
    config = settings(
        data,
        tmp_path,
        head=head(kind),
        steps=250,
        learning_rate=3e-3,
        objective="cross_entropy",
        ema=0.0,
    )
    result = fit.run(config, target_folder)
    assert result["accuracy"] == [1.0, 1.0, 1.0, 1.0]
    assert result["tau_chain"] == result["tau_tree16"] == 5.0
    assert result["reached_chain"] == result["reached_tree16"] == [1.0, 1.0, 1.0, 1.0]
    losses = [record["loss"] for record in curve(config) if "loss" in record]
    assert losses[-1] < losses[0] / 10


def test_online_features_are_those_on_disk_with_the_whole_distribution(target_folder, data_folder, tmp_path):
    disk = fit.Run(settings(data_folder, tmp_path / "disk"), target_folder)
    tokens_only = {"data": {"folder": data_folder}, "features": {"mode": "online", "folder": None}}
    online = fit.Run(settings(data_folder, tmp_path / "online", **tokens_only), target_folder)
    refs = next(disk.steps())[0]
    stored, computed = disk.make_batch(refs, 7), online.make_batch(refs, 7)
    assert torch.equal(stored.rows, computed.rows)
    assert torch.equal(stored.labels, computed.labels)
    torch.testing.assert_close(computed.taps.float(), stored.taps.float(), rtol=0.01, atol=0.01)
    whole = teacher_log_probs(computed.teacher, slice(0, len(computed.rows)), online.lm_head, 1.0)
    top = whole.gather(1, stored.teacher.ids.long())
    torch.testing.assert_close(top, stored.teacher.logprobs.float(), rtol=0, atol=0.02)
    assert whole.exp().sum(-1).allclose(torch.ones(len(whole)))

    result = fit.run(online.config.model_copy(update={"fit": disk.fit}), target_folder)
    assert result["tau_tree16"] >= 1


def test_a_warm_start_goes_on_from_the_head(target_folder, data_folder, tmp_path):
    first = settings(data_folder, tmp_path / "first", steps=40, learning_rate=3e-3)
    fit.run(first, target_folder)
    place = export(first)
    again = settings(data_folder, tmp_path / "again", steps=1, start=str(place), head=head("diffusion"))
    run = fit.Run(again, target_folder)
    for name, tensor in load_head_tensors(place).items():
        assert torch.equal(run.head.state_dict()[name], tensor.float()), name
    other = settings(data_folder, tmp_path / "other", start=str(place), head=head() | {"layers": 1})
    with pytest.raises(TrainError, match="layers 2 instead of 1"):
        fit.Run(other, target_folder)


def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_batch(
    target_folder, data_folder, tmp_path, monkeypatch
):
    plain_loss = fit.Run.loss

    def loss(self, batch, number):
        found, parts = plain_loss(self, batch, number)
        return found * (math.nan if self.progress.step == 2 else 1), parts

    monkeypatch.setattr(fit.Run, "loss", loss)
    config = settings(data_folder, tmp_path)
    with pytest.raises(TrainError, match=r"at step 2 the loss is nan.*bad-batch-2\.pt.*learning_rate"):
        fit.run(config, target_folder)
    saved = torch.load(config.run_folder / "bad-batch-2.pt", weights_only=True)
    assert len(saved["batch"]["labels"]) == len(saved["batch"]["rows"]) > 0
    path, index = saved["texts"][0]
    assert path == str(data_folder / "shard-00000.safetensors")
    assert 0 <= index < 12
    assert all(tensor.isfinite().all() for tensor in saved["head"].values())


@pytest.mark.parametrize("kind", KINDS)
def test_export_reads_back(target_folder, data_folder, tmp_path, kind):
    config = settings(data_folder, tmp_path, head=head(kind))
    fit.run(config, target_folder)
    place = export(config)
    saved = state.load(config.run_folder)
    assert read_head_config(place).model_dump() == saved["head_config"]
    assert read_head_config(place).drafter == kind
    for name, tensor in load_head_tensors(place).items():
        assert torch.equal(tensor, saved["ema"][name].bfloat16())
    card = (place / "README.md").read_text()
    assert "random prompts" in card
    assert f"{saved['evaluation']['tau_tree16']:.2f}" in card
    assert str(tmp_path) not in card


def test_metrics_reach_tensorboard(target_folder, data_folder, tmp_path, monkeypatch):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.setattr(fit, "LOG_STEPS", 2)
    config = settings(data_folder, tmp_path, tensorboard=True)
    fit.run(config, target_folder)
    events = accumulator.EventAccumulator(str(config.run_folder / "tensorboard")).Reload()
    losses = [record for record in curve(config) if "loss" in record]
    assert [event.step for event in events.Scalars("loss")] == [2, 4, 6]
    assert [event.value for event in events.Scalars("loss")] == pytest.approx([r["loss"] for r in losses])
    assert "heldout/tau_tree64" in events.Tags()["scalars"]


def test_what_does_not_fit_is_refused_with_the_way_out(target_folder, data_folder, tmp_path, monkeypatch):
    config = settings(data_folder, tmp_path / "run", steps=1)
    fit.run(config, target_folder)
    other = config.model_copy(update={"head": config.head.model_copy(update={"block_size": 4})})
    with pytest.raises(TrainError, match=r"another head.*new folder"):
        fit.run(other, target_folder)
    taps = settings(data_folder, tmp_path / "taps", features={"target_layer_ids": [0, 1]})
    with pytest.raises(TrainError, match=r"taps of layers \[0, 2\].*set features.target_layer_ids"):
        fit.run(taps, target_folder)
    with pytest.raises(TrainError, match="run `data` and `features` first"):
        fit.run(settings(tmp_path / "none", tmp_path / "none"), target_folder)
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    with pytest.raises(TrainError, match=r"checkpoint.*0.00 GB free: set `work`"):
        fit.run(settings(data_folder, tmp_path / "full"), target_folder)


def test_metrics_after_the_checkpoint_are_dropped(tmp_path):
    lines = [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}, {"step": 3, "loss": 1.0}]
    (tmp_path / metrics.FILE).write_text(
        "".join(json.dumps(line) + "\n" for line in lines) + '{"step": 4, "lo'
    )
    log = metrics.Metrics(tmp_path, 2, tensorboard=False)
    log.write({"step": 3, "loss": 1.5})
    log.close()
    assert metrics.read(tmp_path) == [*lines[:2], {"step": 3, "loss": 1.5}]


@pytest.mark.parametrize("kind", ["causal_parallel", "spec_block"])
def test_two_processes_learn_what_one_does_with_twice_the_batches(target_folder, data_folder, tmp_path, kind):
    """`torchrun` on CPUs: each of two processes takes one of the step's two batches."""
    changes = {"head": head(kind), "batch_anchors": 8, "steps": 4}
    together = settings(data_folder, tmp_path / "together", **changes)
    alone = settings(data_folder, tmp_path / "alone", accumulation=2, **changes)
    fit.run(alone, target_folder)
    script = tmp_path / "run.py"
    script.write_text(RUN)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, str(script), together.model_dump_json(), str(target_folder)]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    expected, found = state.load(alone.run_folder), state.load(together.run_folder)
    assert found["progress"]["step"] == 4
    assert found["progress"]["cursor"] == expected["progress"]["cursor"] == 8
    for name, tensor in expected["head"].items():
        torch.testing.assert_close(found["head"][name], tensor, rtol=1e-4, atol=1e-5)
