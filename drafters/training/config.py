"""Settings of a training run. Unknown keys are errors; dimensions of the head follow the target."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class HeadShape(_Strict):
    """What of the head is free to choose; taps come from the data, all other sizes from the target."""

    layers: int = Field(3, ge=1)
    block_size: int = Field(8, ge=2)
    mask_token_id: int = Field(ge=0)
    causal: bool = True


class FitConfig(_Strict):
    target: Path  # Hugging Face folder of the frozen target
    data: Path  # folder of shard-*.safetensors and heldout-*.safetensors
    output: Path  # checkpoint.pt and metrics.jsonl
    head: HeadShape

    minutes: float | None = Field(None, gt=0)  # wall-clock budget of training proper, over all resumes
    steps: int | None = Field(None, gt=0)

    batch_anchors: int = Field(512, ge=1)
    anchors_per_sequence: int = Field(48, ge=1)
    learning_rate: float = Field(6e-4, gt=0)
    warmup: float = Field(0.03, ge=0, lt=1)  # share of the run
    weight_decay: float = Field(0.01, ge=0)
    ema: float = Field(
        0.0, ge=0, lt=1
    )  # decay a step of the exported average; 0 exports the weights themselves
    hard_weight: float = Field(0.1, ge=0, le=1)  # share of the true token in the label, rest is the teacher
    gamma: float = Field(4.0, ge=0)  # depth k weighs exp(-(k-1)/gamma); 0 weighs all depths alike
    dtype: Literal["bfloat16", "float32"] = "bfloat16"  # of matmuls; master weights are always float32
    seed: int = 0

    checkpoint_minutes: float = Field(5.0, gt=0)
    eval_minutes: float = Field(10.0, gt=0)
    eval_tokens: int = Field(2048, ge=1)  # held-out response tokens; the last evaluation takes all

    @field_validator("target", "data", "output")
    @classmethod
    def _home(cls, path: Path) -> Path:
        return path.expanduser()

    @model_validator(mode="after")
    def _one_budget(self) -> FitConfig:
        if (self.minutes is None) == (self.steps is None):
            raise ValueError("give exactly one of `minutes` and `steps`")
        return self


class TrainConfig(_Strict):
    """One file for all stages: data, fit, export."""

    fit: FitConfig
    export: Path  # folder of the finished head
    response_tokens: int = Field(1_500_000, ge=1)  # that the data stage generates
    target_layer_ids: tuple[int, ...]  # taps, in the order in which the head reads them
    max_new_tokens: int = Field(320, ge=1)

    @field_validator("export")
    @classmethod
    def _home(cls, path: Path) -> Path:
        return path.expanduser()


def load_config(path: Path) -> TrainConfig:
    """Read JSON or YAML (JSON is YAML)."""
    return TrainConfig.model_validate(yaml.safe_load(path.read_text()))
