"""The text files of a report, by name, as functions of the summary. Standard library only."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from .report_tables import points_csv, speedups_csv

PAGE, SUMMARY = "report.html", "summary.json"


def report_folder(study: Path) -> Path:
    return study / "report"


def texts(summary: dict[str, Any]) -> dict[str, str]:
    """All but the page, which needs plotly.js."""
    return {
        SUMMARY: json.dumps(summary, indent=1, ensure_ascii=False, allow_nan=False) + "\n",
        "points.csv": points_csv(summary),
        "speedups.csv": speedups_csv(summary),
    }


def fingerprint(summary: dict[str, Any]) -> str:
    """What a PNG says it was drawn from."""
    return hashlib.sha256(texts(summary)[SUMMARY].encode()).hexdigest()
