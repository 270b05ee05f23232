"""A block head's path corrector in its checkpoint: what is read, and what is written.

Ours: the tensors `path_corrector.*` of `path_corrector.PathCorrector`, and in config.json

    "dflash_config": {..., "path_corrector": {"kind": "gru" or "mlp", "rank": r, "state_size": s (gru alone),
                                              "candidates": M, "skip": depths that are not corrected}}

A tool that doesn't know them finds the plain head in the other tensors. Domino's, as its authors, SpecForge and
SGLang have it (arXiv 2605.29707, github.com/jianuo-huang/Domino):

    "dflash_config": {..., "projector_type": "domino", "emb_dim": r, "gru_hidden_dim": s,
                           "pure_draft_prefix_len": skip, "shift_label": whether a slot predicts the token behind it}
    prefix_gru.*, embed_proj.*

A shifted block of B slots has a row for depth B, which is not used: our blocks reach B - 1 deep. TreeFlash's, as its
authors have it (arXiv 2606.03819, github.com/ETH-DISCO/TreeFlash):

    "treeflash_config": {"ar_approximation": "swiglu", ...}         architecture TreeFlashDraftModel
    model.* (the plain head), ar_approximation.*

Both correct the whole vocabulary, we the likeliest `PUBLISHED_CANDIDATES` of a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

from .checkpoint_values import build_part
from .head_config import CorrectorConfig, HeadConfig
from .head_tensors import HeadError

PUBLISHED_CANDIDATES = 64
TREEFLASH = "TreeFlashDraftModel"
DOMINO_NAMES = {  # ours, by Domino's
    "prefix_gru.weight_ih_l0": "path_corrector.inputs.weight",
    "prefix_gru.weight_hh_l0": "path_corrector.recurrence.weight",
    "embed_proj.0.weight": "path_corrector.project.weight",
    "embed_proj.2.weight": "path_corrector.table.weight",
}
OURS, THEIRS = "path_corrector.", "ar_approximation."  # what TreeFlash's names begin with


def parse_corrector(raw: dict[str, Any], where: str) -> dict[str, Any]:
    """The fields `corrector` and `shifted` of `HeadConfig`, from a published config as plain data.

    Raises HeadError for a corrector of another kind: without it the head would draft something else in silence.
    """
    dflash = raw.get("dflash_config") or {}
    found = {
        "path_corrector": dflash.get("path_corrector"),
        "projector_type": dflash.get("projector_type", raw.get("projector_type")),
        "ar_approximation": (raw.get("treeflash_config") or raw).get("ar_approximation"),
    }
    kinds = {key: value for key, value in found.items() if value is not None}
    if not kinds:
        return {}
    [key, kind], *others = kinds.items()
    if others:
        raise HeadError(f"{where}: {' and '.join(kinds)} name several correctors, but a head has one")
    if key == "path_corrector":
        own = build_part(CorrectorConfig, f"{where}: {key}", kind)
        if own.kind not in ("gru", "mlp"):
            raise HeadError(f"{where}: {key}: kind {own.kind} is read in its own format alone")
        return {"corrector": own}
    if kind == "domino":
        return _domino({**raw, **dflash}, where)
    if kind != "swiglu":
        raise HeadError(f"{where}: {key} {kind!r} is not supported, only domino and swiglu are")
    values = {"kind": "treeflash", "rank": raw["hidden_size"], "candidates": PUBLISHED_CANDIDATES, "skip": 0}
    return {"corrector": build_part(CorrectorConfig, where, values)}


def _domino(keys: dict[str, Any], where: str) -> dict[str, Any]:
    def needed(key: str) -> Any:
        if keys.get(key) is None:
            raise HeadError(f"{where}: a Domino head needs the key {key}")
        return keys[key]

    values = {
        "kind": "domino",
        "rank": needed("emb_dim"),
        "state_size": needed("gru_hidden_dim"),
        "candidates": PUBLISHED_CANDIDATES,
        "skip": needed("pure_draft_prefix_len"),
    }
    return {"corrector": build_part(CorrectorConfig, where, values), "shifted": needed("shift_label")}


def published_corrector(config: HeadConfig) -> dict[str, Any]:
    """What of `dflash_config` says it; nothing for a head without one."""
    own = config.corrector
    if own is None or own.kind == "treeflash":
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


def published_treeflash(config: HeadConfig) -> dict[str, Any]:
    """What a TreeFlash head's config has at the top level, instead of others' and more; nothing for other heads."""
    if config.corrector is None or config.corrector.kind != "treeflash":
        return {}
    return {"architectures": [TREEFLASH], "treeflash_config": {"ar_approximation": "swiglu"}}


def our_names(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """A checkpoint's tensors under the names of `CausalParallelHead`."""
    for name, tensor in tensors:
        name = name.removeprefix("model.")
        if name.startswith(THEIRS):
            name = OURS + name.removeprefix(THEIRS)
        yield DOMINO_NAMES.get(name, name), tensor


def published_names(config: HeadConfig, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """`our_names` undone."""
    kind = config.corrector.kind if config.corrector else None
    domino = {ours: name for name, ours in DOMINO_NAMES.items()}

    def theirs(name: str) -> str:
        if kind == "domino":
            return domino.get(name, name)
        if kind == "treeflash":
            return THEIRS + name.removeprefix(OURS) if name.startswith(OURS) else f"model.{name}"
        return name

    return {theirs(name): tensor for name, tensor in tensors.items()}
