"""The trained draft head that is packaged with the project, made for the built-in target."""

from pathlib import Path

FOLDER = Path(__file__).with_name("head")
FILES = ("config.json", "model.safetensors")


class BuiltinHeadError(RuntimeError):
    """The packaged head is not there; the message says what to do."""


def builtin_head(folder: Path = FOLDER) -> Path:
    """The folder of the packaged head, in the published format.

    Raises:
        BuiltinHeadError: this installation has none.
    """
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise BuiltinHeadError(
            f"This installation has no built-in draft head ({folder / missing[0]} is missing): "
            "install the project again, or name a head with --head FOLDER."
        )
    return folder
