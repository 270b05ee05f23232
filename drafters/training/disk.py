"""Room on disk, asked for before the work and not after it."""

import shutil
from pathlib import Path

from .errors import TrainError

MARGIN = 1.05


def require_space(folder: Path, needed: float, what: str, instead: str) -> None:
    """Make `folder`; raise TrainError unless it has room for `needed` bytes, saying what to do `instead`."""
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if needed * MARGIN > free:
        raise TrainError(
            f"{what} needs about {needed / 1e9:.2f} GB, but {folder} has {free / 1e9:.2f} GB free: {instead}"
        )
