"""The stage `export`: a checkpoint of `fit` as a published head, with a model card."""

from __future__ import annotations

import json
from pathlib import Path

from ..checkpoint import write_head
from ..head_config import AnyHead, AutoregressiveConfig, HeadConfig, SpecBlockConfig
from . import state
from .config import TrainConfig
from .errors import TrainError

CARD = """---
base_model: {target}
library_name: sglang
tags: [speculative-decoding, jetspec, draft-head]
---

# JetSpec draft head for {target}

{what}

Embedding and lm_head are the target's and not part of this file. To serve it:

    python -m sglang.launch_server --model-path {target} --speculative-algorithm JETSPEC \\
        --speculative-draft-model-path FOLDER

## Data

{tokens:,} response tokens in {shards} shards: {source}. The head reads the outputs of the target's layers {taps}
and was taught by {teacher}.

## Training

{steps:,} steps, {passes} full passes over the data, {minutes:.0f} minutes.

## Held-out quality

{quality}

## Settings

```json
{settings}
```
"""

WHAT = {
    "causal_parallel": "A causal parallel draft head: one forward pass over the last committed token and {masks} "
    "mask tokens proposes\nthe next {masks} tokens, from which a token tree is built and verified by the target. The "
    "format is that of published\nDFlash/JetSpec heads.",
    "diffusion": "A bidirectional (DFlash) draft head: one forward pass over the last committed token and {masks} "
    "mask tokens, all of\nwhich see each other, proposes the next {masks} tokens. The format is that of published "
    "DFlash heads.",
    "autoregressive": "An autoregressive (EAGLE-3) draft head, trained to a depth of {masks}: one decoder layer that "
    "is run once a depth, over\nthe tokens drafted so far. The format is that of published EAGLE-3 heads.",
    "spec_block": "A SpecBlock draft head, trained to a depth of {masks}: a forward pass over a token and {positions} "
    "mask tokens drafts the next\n{positions}, each of which knows the state of the one before it, and the following "
    "passes go on from there. Its rank head moves\nthe chances of a row's {ranks} best candidates. The format is "
    "jetspec's own.",
}

CORRECTOR = """

A path corrector (`{kind}`, the tensors `path_corrector.*`) makes the rows depend on the drafted path: it changes the
logits of a row's {candidates} likeliest candidates. It was trained {how}. Tools that don't know
it find the plain head in the other tensors."""

QUALITY = """Measured teacher-forced on {tokens:,} held-out response tokens of the target by replaying the rounds of
decoding; accept length (τ) is tokens committed a round, the target's own bonus token included.

| draft | τ |
|---|---|
{taus}

Top-1 accuracy at depth 1, 2, ...: {accuracy}."""


def export(config: TrainConfig) -> Path:
    """Write the checkpoint to `config.head_folder` in the published form; averaged weights if it has them.

    Raises TrainError without a checkpoint.
    """
    saved = state.load(config.run_folder)
    if saved is None:
        raise TrainError(f"no {state.FILE} in {config.run_folder}: run the stage `fit` first")
    raw = saved["head_config"]
    kind = SpecBlockConfig if "positions" in raw else HeadConfig
    shape = kind(**raw) if "mask_token_id" in raw else AutoregressiveConfig(**raw)
    write_head(config.head_folder, shape, state.best_weights(saved), model_card(saved, shape))
    return config.head_folder


def model_card(saved: dict, shape: AnyHead) -> str:
    data, progress, settings = saved["data"], saved["progress"], saved["config"]
    online = settings["features"]["mode"] == "online"
    return CARD.format(
        target=Path(data.get("target", "its target")).name,
        what=WHAT[shape.drafter].format(masks=shape.block_size - 1, **settings["head"])
        + corrector_of(shape, settings),
        tokens=data["response_tokens"],
        shards=data["shards"],
        source=data.get("source", "source not stated"),
        taps=list(shape.target_layer_ids or ()),
        teacher="the target's whole distributions" if online else "its top-16 next-token distributions",
        steps=progress["step"],
        passes=progress["passes"],
        minutes=progress["seconds"] / 60,
        quality=_quality(saved["evaluation"]),
        settings=json.dumps(
            {key: _without_places(settings[key]) for key in ("head", "fit", "data")}, indent=2
        ),
    )


def corrector_of(shape: AnyHead, settings: dict) -> str:
    """What the card says of a path corrector; nothing of a head without one."""
    own = shape.corrector if isinstance(shape, HeadConfig) else None
    if own is None:
        return ""
    how = "the head being frozen" if settings["fit"]["freeze_head"] else "together with the head"
    return CORRECTOR.format(kind=own.kind, candidates=own.candidates, how=how)


def _without_places(settings: dict) -> dict:
    """Folders of one machine mean nothing to others; of a file, its name does."""
    kept = {key: value for key, value in settings.items() if key != "folder"}
    return {
        key: Path(value).name if isinstance(value, str) and Path(value).expanduser().is_absolute() else value
        for key, value in kept.items()
    }


def _quality(evaluation: dict | None) -> str:
    if evaluation is None:
        return "Not measured."
    names = {"chain": "chain", "tree16": "tree of 16 nodes", "tree64": "tree of 64 nodes"}
    taus = "\n".join(f"| {label} | {evaluation[f'tau_{name}']:.2f} |" for name, label in names.items())
    accuracy = ", ".join(f"{value:.3f}" for value in evaluation["accuracy"])
    return QUALITY.format(tokens=evaluation["tokens"], taus=taus, accuracy=accuracy)
