"""What a run reports: a line of JSON a record in `metrics.jsonl`, and the same numbers to TensorBoard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .errors import TrainError

FILE = "metrics.jsonl"


def read(folder: Path) -> list[dict[str, Any]]:
    """All records of a run; a last line that was cut off by a crash is left out."""
    path = folder / FILE
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


class Metrics:
    """Appends to a run's records. What came after the checkpoint at ``step`` is dropped: it will come again."""

    def __init__(self, folder: Path, step: int | None, tensorboard: bool) -> None:
        """step: None for a new run. Raises TrainError if TensorBoard is wanted and not installed."""
        kept = [] if step is None else [record for record in read(folder) if record["step"] <= step]
        partial = folder / f"{FILE}.partial"
        partial.write_text("".join(json.dumps(record) + "\n" for record in kept))
        partial.replace(folder / FILE)
        self._log = (folder / FILE).open("a")
        self._board = _board(folder, step) if tensorboard else None

    def write(self, record: dict[str, Any]) -> None:
        """A record has a `step`; what of the rest is a number, also inside a `heldout`, gets a curve."""
        self._log.write(json.dumps(record) + "\n")
        self._log.flush()
        if self._board is not None:
            for name, value in _numbers(record).items():
                self._board.add_scalar(name, value, record["step"])

    def close(self) -> None:
        self._log.close()
        if self._board is not None:
            self._board.close()


def _board(folder: Path, step: int | None) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise TrainError(
            "TensorBoard is not installed: pip install 'jetspec-sglang[train]', or set fit.tensorboard to false"
        ) from error
    return SummaryWriter(str(folder / "tensorboard"), purge_step=None if step is None else step + 1)


def _numbers(record: dict[str, Any], prefix: str = "") -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, dict):
            found |= _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and name != "step":
            found[prefix + name] = value
    return found
