"""The trained draft heads that are packaged with the project, made for the built-in target."""

from pathlib import Path

from .corrected import CORRECTOR, WEIGHTS, corrected_head

FOLDER = Path(__file__).with_name("heads")
CONFIG = "config.json"
DEFAULT = "causal"  # also the head that packaged path correctors complete
PREFIX = "builtin:"  # of a head's place: builtin:causal


class BuiltinHeadError(RuntimeError):
    """The packaged head is not there; the message says what to do."""


def builtin_head(name: str = DEFAULT, folder: Path = FOLDER) -> Path:
    """The folder of a packaged head, in its published format.

    Raises:
        BuiltinHeadError: this installation has none of that name, or can't write it to the cache.
    """
    head, default = folder / name, folder / DEFAULT
    there = [each.name for each in sorted(folder.glob("*")) if _whole(each) or _completes(each, default)]
    if name in there:
        try:
            return head if _whole(head) else corrected_head(head, default)
        except OSError as error:
            raise BuiltinHeadError(
                f"The built-in draft head {name!r} can't be written to the cache ({error}): set JETSPEC_CACHE to a "
                "folder that can be written to."
            ) from error
    if there:
        known = ", ".join(PREFIX + other for other in there)
        raise BuiltinHeadError(f"There is no built-in draft head {name!r}: choose {known}, or name a folder.")
    raise BuiltinHeadError(
        f"This installation has no built-in draft head ({head / WEIGHTS} is missing): install the project "
        "again, or name a head's folder."
    )


def _whole(head: Path) -> bool:
    return all((head / file).is_file() for file in (CONFIG, WEIGHTS))


def _completes(corrector: Path, head: Path) -> bool:
    return all((corrector / file).is_file() for file in (CONFIG, CORRECTOR)) and _whole(head)


def named_builtin(place: str | Path) -> Path | None:
    """The folder of ``builtin:NAME``; None for any other place.

    Raises:
        BuiltinHeadError: as `builtin_head`.
    """
    text = str(place)
    return builtin_head(text.removeprefix(PREFIX)) if text.startswith(PREFIX) else None
