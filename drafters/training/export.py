"""From a training folder to a published head: `python -m ….training.export RUN HEAD`."""

from __future__ import annotations

import json
from pathlib import Path

from ..checkpoint import write_head
from ..head_config import HeadConfig
from . import state

CARD = """---
base_model: {target}
library_name: sglang
tags: [speculative-decoding, jetspec, draft-head]
---

# JetSpec draft head for {target}

A {kind} parallel draft head: one forward pass over the last committed token and {masks} mask tokens
proposes the next {masks} tokens, from which a token tree is built and verified by the target. Embedding and
lm_head are the target's and not part of this file. The format is that of published DFlash/JetSpec heads.

## Data

Responses of the target itself ({source}), {shards} shards, with its layer outputs {taps} and its top-16
next-token distributions. {steps} steps, {passes} full passes over the data, {minutes:.0f} minutes.

## Held-out quality

{quality}

## Settings

```json
{settings}
```
"""

QUALITY = """Measured teacher-forced on {tokens} held-out response tokens by replaying
the rounds of decoding; accept length is tokens committed a round, the target's own bonus token included.

| draft | accept length |
|---|---|
{taus}

Top-1 accuracy at depth 1, 2, ...: {accuracy}."""


def export(run: Path, head: Path) -> Path:
    """Write the checkpoint in ``run`` to ``head`` in the published form; averaged weights if it has them."""
    saved = state.load(run)
    if saved is None:
        raise FileNotFoundError(f"{run} holds no {state.FILE}")
    config = HeadConfig.model_validate(saved["head_config"])
    write_head(head, config, state.best_weights(saved), model_card(saved, config))
    return head


def model_card(saved: dict, config: HeadConfig) -> str:
    data, progress = saved["data"], saved["progress"]
    settings = {k: v for k, v in saved["fit_config"].items() if k not in ("target", "data", "output")}
    return CARD.format(
        target=Path(data.get("target", "its target")).name,
        source=data.get("source", "source not stated"),
        kind="causal" if config.causal else "bidirectional",
        masks=config.block_size - 1,
        shards=len(data["shards"]),
        taps=list(config.target_layer_ids),
        steps=progress["step"],
        passes=progress["passes"],
        minutes=progress["seconds"] / 60,
        quality=_quality(saved["evaluation"]),
        settings=json.dumps(settings, indent=2),
    )


def _quality(evaluation: dict | None) -> str:
    if evaluation is None:
        return "Not measured."
    names = {"chain": "chain", "tree16": "tree of 16 nodes", "tree64": "tree of 64 nodes"}
    taus = "\n".join(f"| {label} | {evaluation[f'tau_{name}']:.2f} |" for name, label in names.items())
    accuracy = ", ".join(f"{value:.3f}" for value in evaluation["accuracy"])
    return QUALITY.format(tokens=evaluation["tokens"], taus=taus, accuracy=accuracy)
