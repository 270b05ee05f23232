"""The trained draft heads that are packaged with the project, made for the built-in target."""

from pathlib import Path

FOLDER = Path(__file__).with_name("heads")
FILES = ("config.json", "model.safetensors")
DEFAULT = "causal"
PREFIX = "builtin:"  # of a head's place: builtin:causal


class BuiltinHeadError(RuntimeError):
    """The packaged head is not there; the message says what to do."""


def builtin_head(name: str = DEFAULT, folder: Path = FOLDER) -> Path:
    """The folder of a packaged head, in its published format.

    Raises:
        BuiltinHeadError: this installation has none of that name.
    """
    head = folder / name
    missing = [file for file in FILES if not (head / file).is_file()]
    if not missing:
        return head
    if packaged := [there.name for there in sorted(folder.glob("*")) if (there / FILES[0]).is_file()]:
        known = ", ".join(PREFIX + other for other in packaged)
        raise BuiltinHeadError(f"There is no built-in draft head {name!r}: choose {known}, or name a folder.")
    raise BuiltinHeadError(
        f"This installation has no built-in draft head ({head / missing[0]} is missing): install the project "
        "again, or name a head's folder."
    )


def named_builtin(place: str | Path) -> Path | None:
    """The folder of ``builtin:NAME``; None for any other place.

    Raises:
        BuiltinHeadError: as `builtin_head`.
    """
    text = str(place)
    return builtin_head(text.removeprefix(PREFIX)) if text.startswith(PREFIX) else None
