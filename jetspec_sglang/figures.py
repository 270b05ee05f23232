"""Pictures of a command: is everything there to draw one, and how it is written.

matplotlib is an optional dependency (`plot`), so it is imported by the modules that draw, and they by the
commands only when a picture is asked for.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .compare import CompareError, writable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png")
DPI = 150


def drawable(file: Path | None) -> None:
    """Find out now, not after minutes of work, whether a picture can be drawn and written.

    Raises:
        CompareError: matplotlib is missing, or `file` has another suffix or can't be written.
    """
    if file is None:
        return
    if file.suffix.lower() not in SUFFIXES:
        raise CompareError(
            f"{file} is no picture that can be drawn; give it a name in {' or '.join(SUFFIXES)}."
        )
    require_matplotlib()
    writable(file)


def require_matplotlib() -> None:
    """Raise CompareError without it."""
    if find_spec("matplotlib") is None:
        raise CompareError("Pictures need matplotlib; install it with pip install 'jetspec-sglang[plot]'.")


def save(figure: "Figure", file: Path) -> None:
    """The same figure gives the same bytes: no date, no random ids."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "jetspec"}):
        undated: dict[str, Any] = {"metadata": {"Date": None}} if file.suffix.lower() == ".svg" else {}
        figure.savefig(file, dpi=DPI, **undated)
