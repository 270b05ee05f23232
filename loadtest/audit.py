"""Compute every published number of a study again from its raw files, and compare.

`jetspec loadtest audit DIR`, or `python loadtest/audit.py DIR` on a machine that has nothing but Python and this
folder: standard library only.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

if not __package__:  # run as a script: make this folder a package, as PEP 366 says
    _folder = Path(__file__).resolve().parent
    sys.path[0] = str(_folder.parent)  # in place of the folder itself, whose names are not top-level modules
    __package__ = _folder.name
    __import__(__package__)

from .report_figures import sections
from .report_files import PAGE, SUMMARY, fingerprint, report_folder, texts
from .report_page import page
from .report_summary import StudyError, summarise_study

PNG_KEY = b"Description"


def audit(study: Path) -> list[str]:
    """What of the report does not follow from the raw files, a line each; empty if all does."""
    try:
        summary = summarise_study(study)
    except StudyError as error:
        return [*_changed(study), str(error)]
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        return [*_changed(study), f"The raw files are not of one study ({error!r})."]
    folder = report_folder(study)
    found: list[str] = []
    for name, expected in texts(summary).items():
        published = _read(folder / name)
        if published is None:
            found.append(f"{name} is missing.")
        elif name == SUMMARY:
            found += _different_json(name, published, json.loads(expected))
        else:
            found += _different_csv(name, published, expected)
    found += _page_problems(folder / PAGE, summary)
    found += _picture_problems(folder, summary)
    return found


def _changed(study: Path) -> list[str]:
    """Raw files that are there but not those that the report was made from."""
    try:
        raw = json.loads(_read(report_folder(study) / SUMMARY) or "")["raw"]
        files = [(name, study / name) for name in raw if (study / name).exists()]
        changed = [name for name, file in files if sha256(file.read_bytes()).hexdigest() != raw[name]]
    except (KeyError, TypeError, ValueError):
        return [f"{SUMMARY} is missing, or no summary of a study."]
    return [f"{name} was changed after the report was written." for name in changed]


def different(published: Any, computed: Any, where: str) -> Iterator[str]:
    """Where two JSON values differ, with the path to each difference."""
    if isinstance(published, dict) and isinstance(computed, dict):
        for key in [*computed, *(key for key in published if key not in computed)]:
            place = f"{where} › {key}"
            if key not in published:
                yield f"{place} is not published; the raw files give it."
            elif key not in computed:
                yield f"{place} is published, but the raw files do not give it."
            else:
                yield from different(published[key], computed[key], place)
    elif isinstance(published, list) and isinstance(computed, list) and len(published) == len(computed):
        for index, (one, other) in enumerate(zip(published, computed, strict=True)):
            yield from different(one, other, f"{where} › {_label(other, index)}")
    elif type(published) is not type(computed) or published != computed:
        yield f"{where}: published {_short(published)}, the raw files give {_short(computed)}."


def _label(value: Any, index: int) -> str:
    """Points and speed-ups have no key; what they are of names them."""
    if isinstance(value, dict) and {"server", "kind", "load"} <= value.keys():
        return f"{value['server']} at {value['kind']} {value['load']:g}"
    return str(index)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "…"


def _read(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _different_json(name: str, published: str, computed: Any) -> list[str]:
    try:
        return list(different(json.loads(published), computed, name))
    except ValueError as error:
        return [f"{name} is no JSON ({error})."]


def _different_csv(name: str, published: str, expected: str) -> list[str]:
    if published == expected:
        return []
    ours, theirs = (list(csv.reader(io.StringIO(text))) for text in (expected, published))
    found = [
        f"{name} › {', '.join(row[:3])} › {column}: published {value!r}, the raw files give {right!r}."
        for row, other in zip(ours, theirs, strict=False)
        for column, right, value in zip(ours[0], row, other, strict=False)
        if value != right
    ]
    return found or [f"{name} has {len(theirs)} rows as published; the raw files give {len(ours)}."]


def _page_problems(file: Path, summary: dict[str, Any]) -> list[str]:
    """The numbers embedded in the page, then the rest of it, plotly.js apart."""
    text = _read(file)
    if text is None:
        return [f"{PAGE} is missing."]
    expected = page(summary, "")
    try:
        published = _without(text, '<script id="plotly">')
        found = [
            line
            for key in ("summary", "figures")
            for line in _different_json(
                f"{PAGE}, {key}", _script(published, key), json.loads(_script(expected, key))
            )
        ]
    except ValueError:
        return [f"{PAGE} is no page of this program."]
    if not found and published != expected:
        pairs = zip(published.splitlines(), expected.splitlines(), strict=False)
        first = next((n for n, (one, other) in enumerate(pairs, 1) if one != other), 0)
        found = [f"{PAGE}: its text differs from what the raw files give, first in line {first}."]
    return found


def _script(text: str, key: str) -> str:
    """What stands in one of the page's script elements."""
    begin = text.index(f'id="{key}">') + len(f'id="{key}">')
    return text[begin : text.index("</script>", begin)]


def _without(text: str, tag: str) -> str:
    begin = text.index(tag) + len(tag)
    return text[:begin] + text[text.index("</script>", begin) :]


def _picture_problems(folder: Path, summary: dict[str, Any]) -> list[str]:
    """Each PNG is there and was drawn from this summary."""
    wanted = fingerprint(summary)
    found = []
    for figure in (figure for section in sections(summary) for figure in section.figures):
        file = folder / f"{figure.id}.png"
        if not file.exists():
            found.append(f"{file.name} is missing.")
        elif _png_text(file.read_bytes()) != wanted:
            found.append(f"{file.name} was drawn from other numbers.")
    return found


def _png_text(data: bytes) -> str | None:
    """The text that a PNG keeps under `PNG_KEY`: chunks are length, type, data, checksum (PNG specification)."""
    place = 8
    while place + 8 <= len(data):
        length, kind = int.from_bytes(data[place : place + 4], "big"), data[place + 4 : place + 8]
        if kind == b"tEXt":
            key, _, text = data[place + 8 : place + 8 + length].partition(b"\0")
            if key == PNG_KEY:
                return text.decode("latin-1")
        place += length + 12
    return None


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python audit.py DIR", file=sys.stderr)
        return 2
    study = Path(arguments[0])
    problems = audit(study)
    for problem in problems:
        print(problem)
    print(
        f"{study}: {len(problems)} mismatches."
        if problems
        else f"{study}: every published number follows from the raw files."
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
