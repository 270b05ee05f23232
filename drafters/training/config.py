"""Settings of a training run: one file for the four stages. Unknown keys are errors.

Values come from a YAML, JSON or TOML file, and single ones from the command line (`fit.learning_rate=1e-3`).
Sizes of the head that are not asked for here follow the target.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from jetspec_sglang.builtin import BUILTIN

from ..head_config import CorrectorConfig
from .errors import TrainError

FolderPath = Annotated[Path, AfterValidator(Path.expanduser)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DataConfig(_Strict):
    """Stage `data`: prompts in, token sequences out."""

    # The built-in sets and templates; a JSONL file; or a data set of the Hugging Face hub, `owner/name`.
    prompts: str = BUILTIN
    split: str = "train"  # of a hub data set
    # Answers of the target to the prompts, or what the data set itself answers.
    responses: Literal["regenerate", "corpus"] = "regenerate"
    # What generates: SGLang where there is an accelerator and transformers on a CPU, unless it is named.
    generator: Literal["auto", "sglang", "transformers"] = "auto"
    response_tokens: int = Field(1_500_000, ge=1)  # where the stage stops, if the prompts last so long
    max_new_tokens: int = Field(320, ge=2)  # a response is cut there
    max_prompt_tokens: int = Field(256, ge=1)  # longer prompts are left out
    batch: int = Field(192, ge=1)  # prompts a shard, all generated at once
    # Prompts for the held-out quality, always answered by the target: the built-in ones, or a JSONL file.
    heldout: str = BUILTIN
    folder: FolderPath | None = None


class FeaturesConfig(_Strict):
    """Stage `features`: what the head sees of the target, and what it learns from it."""

    # disk: shards with taps and top-16 distributions; online: computed by `fit`, with the whole distribution.
    mode: Literal["disk", "online"] = "disk"
    target_layer_ids: tuple[int, ...] | None = None  # taps; None spreads as many as the head has layers
    folder: FolderPath | None = None


class HeadShape(_Strict):
    """What of the head is free to choose."""

    drafter: Literal["causal_parallel", "diffusion", "autoregressive", "spec_block"] = "causal_parallel"
    layers: int = Field(3, ge=1)  # an autoregressive head has one
    block_size: int = Field(8, ge=2)  # anchor included; of an autoregressive head, one more than its depth
    mask_token_id: int | None = Field(None, ge=0)  # an id that no text has; an autoregressive head has none
    # Of a spec_block head: depths that one forward drafts, and ranks that its rank head tells apart.
    positions: int | None = Field(None, ge=1)
    ranks: int | None = Field(None, ge=1)
    # Of a block head: what makes its rows depend on the drafted path, kind gru or mlp.
    corrector: CorrectorConfig | None = None

    @model_validator(mode="after")
    def _of_its_kind(self) -> HeadShape:
        if self.drafter == "autoregressive":
            if self.layers != 1 or self.mask_token_id is not None:
                raise ValueError(
                    "an autoregressive head has one layer and no mask: set `layers: 1`, drop `mask_token_id`"
                )
        elif self.mask_token_id is None:
            raise ValueError(f"a {self.drafter} head drafts from masks: set `mask_token_id`")
        if self.corrector is not None and self.drafter in ("autoregressive", "spec_block"):
            raise ValueError(f"a head of drafter {self.drafter} knows its path: drop `corrector`")
        own = [name for name in ("positions", "ranks") if getattr(self, name) is not None]
        if self.drafter == "spec_block":
            if len(own) < 2:
                raise ValueError("a spec_block head drafts in blocks: set `positions` and `ranks`")
        elif own:
            raise ValueError(f"only spec_block heads have {' and '.join(own)}: drop it, or set `drafter`")
        if self.corrector is not None and self.corrector.kind not in ("gru", "mlp"):
            raise ValueError(
                f"{self.corrector.kind} heads are read, not trained: set corrector.kind to gru or mlp"
            )
        return self


class FitConfig(_Strict):
    """Stage `fit`: the head learns."""

    # Exactly one of the two. The learning rate follows it, so only with `steps` is a run repeatable.
    minutes: float | None = Field(None, gt=0)  # training proper, over all resumes
    steps: int | None = Field(None, gt=0)

    objective: Literal["cross_entropy", "forward_kl", "reverse_kl"] = "forward_kl"
    temperature: float = Field(1.0, gt=0)  # of both distributions of a KL, which is scaled by its square
    hard_weight: float = Field(0.0, ge=0, le=1)  # share of cross entropy that is mixed into a KL
    # The softmax of a loss goes over the tokens that the batch names and so many others, drawn for each batch;
    # None: over the whole vocabulary, whose matmuls are about half of a small head's arithmetic.
    negatives: int | None = Field(None, ge=1)
    gamma: float = Field(0.0, ge=0)  # depth k weighs exp(-(k-1)/gamma); 0 weighs all depths alike
    # Of a spec_block head: a label counts while each label above it is among so many likeliest tokens of its row, since
    # no tree goes on below others. 1: while the head's chain is right; 0: all count; None: the head's ranks.
    valid_prefix: int | None = Field(None, ge=0)

    batch_anchors: int = Field(512, ge=1)  # of a forward
    accumulation: int = Field(1, ge=1)  # forwards a step
    anchors_per_sequence: int = Field(48, ge=1)
    learning_rate: float = Field(3e-4, gt=0)
    warmup: float = Field(0.03, ge=0, lt=1)  # share of the run; a cosine follows
    weight_decay: float = Field(0.01, ge=0)
    clip: float = Field(1.0, gt=0)  # largest norm of the gradient
    ema: float = Field(0.0, ge=0, lt=1)  # decay a step of the average that is exported; 0: no average
    dtype: Literal["bfloat16", "float32"] = "bfloat16"  # of matmuls; master weights are always float32
    # A head folder to start from instead of the target's own layers.
    start: str | None = None
    freeze_head: bool = False  # train the path corrector alone

    checkpoint_minutes: float = Field(5.0, gt=0)
    eval_minutes: float = Field(10.0, gt=0)
    eval_tokens: int = Field(2048, ge=1)  # held-out response tokens; the last evaluation takes all
    tensorboard: bool = True
    folder: FolderPath | None = None

    @model_validator(mode="after")
    def _one_budget(self) -> FitConfig:
        if (self.minutes is None) == (self.steps is None):
            raise ValueError("give exactly one of `minutes` and `steps`")
        if self.objective == "cross_entropy" and (self.temperature != 1 or self.hard_weight):
            raise ValueError("temperature and hard_weight belong to a KL; leave them out with cross_entropy")
        if self.negatives is not None and self.objective == "reverse_kl":
            raise ValueError("a reverse KL needs the whole vocabulary; leave negatives out")
        return self


class ExportConfig(_Strict):
    """Stage `export`: the published format."""

    folder: FolderPath | None = None


class TrainConfig(_Strict):
    """One file for all stages."""

    target: str  # folder or hub name of the frozen target, or `builtin`
    work: FolderPath  # each stage has a folder in it, unless its own `folder` says otherwise
    seed: int = 0
    data: DataConfig = Field(default_factory=lambda: DataConfig.model_validate({}))
    features: FeaturesConfig = FeaturesConfig()
    head: HeadShape
    fit: FitConfig
    export: ExportConfig = ExportConfig()

    @model_validator(mode="after")
    def _corrector(self) -> TrainConfig:
        if self.head.corrector is None:
            if self.fit.freeze_head:
                raise ValueError("fit.freeze_head leaves nothing to train without a head.corrector")
            return self
        if self.fit.freeze_head and self.fit.start is None:
            raise ValueError("fit.freeze_head is for a finished head: set fit.start to its folder")
        fit = self.fit
        if fit.objective == "reverse_kl" or fit.temperature != 1 or fit.negatives is not None:
            raise ValueError(
                "a corrected head learns by cross_entropy or forward_kl over the whole vocabulary at temperature 1"
            )
        if self.features.mode == "online":
            raise ValueError("a corrected head learns from features on disk: set features.mode to disk")
        return self

    @model_validator(mode="after")
    def _prefix(self) -> TrainConfig:
        if self.fit.valid_prefix is not None and self.head.drafter != "spec_block":
            raise ValueError("fit.valid_prefix is for spec_block heads: leave it out")
        return self

    @model_validator(mode="after")
    def _teacher_fits(self) -> TrainConfig:
        online = self.features.mode == "online" and self.fit.objective == "forward_kl"
        if online and self.fit.negatives is not None:
            raise ValueError(
                "features.mode online teaches the whole distribution; leave fit.negatives out, or set mode to disk"
            )
        return self

    @property
    def tokens_folder(self) -> Path:
        """Shards of tokens alone: what `data` writes and `features` reads."""
        return self.data.folder or self.work / "tokens"

    @property
    def features_folder(self) -> Path:
        """Shards with features: what `fit` reads."""
        return self.features.folder or self.work / "features"

    @property
    def run_folder(self) -> Path:
        """Checkpoint and metrics of `fit`."""
        return self.fit.folder or self.work / "run"

    @property
    def head_folder(self) -> Path:
        """The finished head."""
        return self.export.folder or self.work / "head"


def load_config(path: Path, changes: Iterable[str] = ()) -> TrainConfig:
    """Read a YAML, JSON or TOML file and apply `changes`, each `section.key=value` with a YAML value.

    Raises TrainError for a file or a change that can't be read, pydantic's ValidationError for wrong keys or
    values.
    """
    try:
        text = path.read_text()
        raw = tomllib.loads(text) if path.suffix == ".toml" else yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, yaml.YAMLError) as error:
        raise TrainError(f"{path} can't be read: {error}") from error
    if not isinstance(raw, dict):
        raise TrainError(f"{path} holds no settings: it must be a mapping of keys to values")
    for change in changes:
        _apply(raw, change)
    return TrainConfig.model_validate(raw)


def _apply(raw: dict[str, Any], change: str) -> None:
    name, equals, value = change.partition("=")
    *sections, key = name.strip().split(".")
    if not equals or not key:
        raise TrainError(f"--set {change} is no setting; write it as section.key=value")
    for section in sections:
        raw = raw.setdefault(section, {})
        if not isinstance(raw, dict):
            raise TrainError(f"--set {change}: {section} is a value, not a section")
    raw[key] = _value(value)


def _value(text: str) -> Any:
    """YAML, except that 1e-3 is a number: YAML 1.1 wants a dot in it."""
    value = yaml.safe_load(text)
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            pass
    return value
