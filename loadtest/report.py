"""Write a study's report: the page, the numbers as JSON and CSV, the figures as PNG."""

from __future__ import annotations

from pathlib import Path

from plotly.offline import get_plotlyjs

from .plots import draw
from .report_figures import sections
from .report_files import PAGE, fingerprint, report_folder, texts
from .report_page import page
from .report_summary import summarise_study


def write_report(study: Path) -> Path:
    """Write ``report/`` in a finished study's folder; returns the page's path.

    Raises:
        StudyError: cells are missing, or a file is not what it should be.
    """
    summary = summarise_study(study)
    folder = report_folder(study)
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.png"):
        old.unlink()
    for name, text in texts(summary).items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / PAGE).write_text(page(summary, get_plotlyjs()), encoding="utf-8")
    for section in sections(summary):
        for figure in section.figures:
            draw(figure, folder / f"{figure.id}.png", fingerprint(summary))
    return folder / PAGE
