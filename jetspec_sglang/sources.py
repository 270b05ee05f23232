"""Where an installed module's source lies, found without importing anything.

`importlib.util.find_spec` imports the packages above a module, which for SGLang takes many seconds.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def module_path(name: str) -> Path | None:
    """File of a module or folder of a package, None if there is neither."""
    top, *rest = name.split(".")
    spec = find_spec(top)  # a top-level name has no parent to import
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder, *rest)
        if path.is_dir():
            return path
        if path.with_suffix(".py").is_file():
            return path.with_suffix(".py")
    return None


def module_source(name: str) -> str | None:
    """Text of a module, or of a package's ``__init__``."""
    path = module_path(name)
    if path is not None and path.is_dir():
        path = path / "__init__.py"
    return path.read_text(encoding="utf-8") if path is not None and path.is_file() else None
