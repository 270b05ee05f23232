"""A packaged path corrector is kept without the head that it was trained on, which is packaged once, by itself.

Where such a head is asked for, the two are written together, once, as the ordinary checkpoint of a head with a
corrector.
"""

import hashlib
import shutil
import tempfile
from pathlib import Path

from .target import cache_dir

CORRECTOR = "path_corrector.safetensors"  # beside it the config.json of the whole head
WEIGHTS = "model.safetensors"


def corrected_head(corrector: Path, head: Path) -> Path:
    """The folder of the head that the folder ``corrector`` completes, made from the folder ``head`` on the first call.

    It is named after what is in it, so another version of either is another folder.
    """
    sources = [corrector / "config.json", corrector / CORRECTOR, head / WEIGHTS]
    digest = hashlib.sha256()
    for source in sources:
        digest.update(hashlib.sha256(source.read_bytes()).digest())
    folder = cache_dir() / "heads" / f"{corrector.name}-{digest.hexdigest()[:16]}"
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Written beside its final place and renamed, so that a half-made folder is never taken for a head.
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=folder.name))
    try:
        _write(corrector, head, scratch)
        try:
            scratch.rename(folder)
        except OSError:
            if not folder.exists():  # else another process was faster
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _write(corrector: Path, head: Path, folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(head / WEIGHTS) | load_file(corrector / CORRECTOR)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    for source in corrector.iterdir():
        if source.name != CORRECTOR:
            shutil.copy(source, folder)
