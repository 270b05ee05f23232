"""A block head's path corrector in its checkpoint: what is read, and what is written.

Ours: the tensors `path_corrector.*` of `path_corrector.PathCorrector`, and in config.json

    "dflash_config": {..., "path_corrector": {"kind": "gru" or "mlp", "rank": r, "state_size": s (gru alone),
                                              "candidates": M, "skip": depths that are not corrected}}

A tool that doesn't know them finds the plain head in the other tensors. Domino's, as its authors, SpecForge and
SGLang have it (arXiv 2605.29707, github.com/jianuo-huang/Domino):

    "dflash_config": {..., "projector_type": "domino", "emb_dim": r, "gru_hidden_dim": s,
                           "pure_draft_prefix_len": skip, "shift_label": whether a slot predicts the token behind it}

A shifted block of B slots has a row for depth B, which is not used: our blocks reach B - 1 deep. Domino corrects
the whole vocabulary, we the likeliest `DOMINO_CANDIDATES` of a row, as DominoTree does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

from .checkpoint_values import build_part
from .head_config import CorrectorConfig, HeadConfig
from .head_tensors import HeadError

DOMINO_CANDIDATES = 64
DOMINO_NAMES = {  # ours, by Domino's
    "prefix_gru.weight_ih_l0": "path_corrector.inputs.weight",
    "prefix_gru.weight_hh_l0": "path_corrector.recurrence.weight",
    "embed_proj.0.weight": "path_corrector.project.weight",
    "embed_proj.2.weight": "path_corrector.table.weight",
}


def parse_corrector(raw: dict[str, Any], where: str) -> dict[str, Any]:
    """The fields `corrector` and `shifted` of `HeadConfig`, from a published config as plain data.

    Raises HeadError for a corrector of another kind: without it the head would draft something else in silence.
    """
    if raw.get("treeflash_config") is not None:
        raise HeadError(
            f"{where}: a TreeFlash head corrects its hidden states in front of the final norm, which is not "
            "supported; train a corrector of kind mlp on a block head instead"
        )
    dflash = raw.get("dflash_config") or {}
    kind, own = dflash.get("projector_type", raw.get("projector_type")), dflash.get("path_corrector")
    if kind is None:
        return {
            "corrector": None if own is None else build_part(CorrectorConfig, f"{where}: path_corrector", own)
        }
    if kind != "domino" or own is not None:
        raise HeadError(
            f"{where}: projector_type {kind!r} is not supported, only domino is, without path_corrector"
        )

    def needed(key: str) -> Any:
        value = dflash.get(key, raw.get(key))
        if value is None:
            raise HeadError(f"{where}: a Domino head needs the key {key}")
        return value

    values = {
        "kind": "domino",
        "rank": needed("emb_dim"),
        "state_size": needed("gru_hidden_dim"),
        "candidates": DOMINO_CANDIDATES,
        "skip": needed("pure_draft_prefix_len"),
    }
    return {"corrector": build_part(CorrectorConfig, where, values), "shifted": needed("shift_label")}


def published_corrector(config: HeadConfig) -> dict[str, Any]:
    """What of `dflash_config` says it; nothing for a head without one."""
    own = config.corrector
    if own is None:
        return {}
    if own.kind != "domino":
        return {"path_corrector": own.model_dump(exclude_none=True)}
    return {
        "projector_type": "domino",
        "emb_dim": own.rank,
        "gru_hidden_dim": own.state_size,
        "pure_draft_prefix_len": own.skip,
        "shift_label": config.shifted,
    }


def our_names(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """A checkpoint's tensors under the names of `CausalParallelHead`."""
    return ((DOMINO_NAMES.get(name, name), tensor) for name, tensor in tensors)


def published_names(config: HeadConfig, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """`our_names` undone."""
    if config.corrector is None or config.corrector.kind != "domino":
        return tensors
    theirs = {ours: name for name, ours in DOMINO_NAMES.items()}
    return {theirs.get(name, name): tensor for name, tensor in tensors.items()}
