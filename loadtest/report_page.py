"""The report as one self-contained HTML page: text, tables, data and plotly.js. Standard library only.

The page is a pure function of the summary, so the audit makes it again and compares every character.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from .report_caveats import caveats
from .report_figures import sections
from .report_plotly import plotly
from .report_shapes import Figure, Section, Series
from .report_tables import Row, cell_table, point_table

TEMPLATE = Path(__file__).with_name("report_page.html")
# 12 × 12 drawings of plotly's marker shapes, for the legends.
SHAPES = {
    "circle": '<circle cx="6" cy="6" r="5"/>',
    "square": '<rect x="1" y="1" width="10" height="10"/>',
    "diamond": '<path d="M6 0 12 6 6 12 0 6z"/>',
    "triangle-up": '<path d="M6 1 12 11H0z"/>',
    "cross": '<path d="M4 0h4v4h4v4h-4v4h-4v-4h-4v-4h4z"/>',
    "x": '<path d="M2 0 6 4 10 0 12 2 8 6 12 10 10 12 6 8 2 12 0 10 4 6 0 2z"/>',
    "star": '<path d="M6 0 7.6 4.2 12 4.4 8.6 7.2 9.7 11.6 6 9.1 2.3 11.6 3.4 7.2 0 4.4 4.4 4.2z"/>',
    "pentagon": '<path d="M6 0 12 4.4 9.7 11.5H2.3L0 4.4z"/>',
}


def page(summary: dict[str, Any], plotly_js: str) -> str:
    """The whole page."""
    shown = sections(summary)
    figures = {figure.id: plotly(figure) for section in shown for figure in section.figures}
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=escape(summary["title"]),
        front=_front(summary),
        sections="\n".join(map(_section, shown)),
        back=_back(summary),
        summary=_json(summary),
        figures=_json(figures),
        plotly=plotly_js,
    )


def _json(value: Any) -> str:
    """For a script element, which a `<` could end."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False).replace("<", "\\u003c")


def _front(summary: dict[str, Any]) -> str:
    notes = [f"<p>{escape(note)}</p>" for note in summary["notes"]]
    points = [
        f"<h2>{title}</h2>{_table(rows, 'tight', text=2)}"
        for title, rows in (
            ("At request rates", point_table(summary, "rate")),
            ("At a fixed number of requests in flight", point_table(summary, "concurrency")),
        )
        if rows
    ]
    return "\n".join(
        [
            *notes,
            "<h2>Read this first</h2>",
            _list(caveats(summary), ' id="caveats"'),
            _facts(summary),
            *points,
        ]
    )


def _facts(summary: dict[str, Any]) -> str:
    rows = [
        ["machine", _pairs(summary["machine"])],
        ["load generator", _pairs(summary["versions"])],
        ["workload", _pairs(summary["workload"])],
        ["runs", _pairs(summary["run"])],
        ["measured", " to ".join(summary["measured_utc"])],
    ]
    body = "".join(
        f'<tr><td class="text">{name}</td><td class="text">{text}</td></tr>' for name, text in rows
    )
    return f'<table class="facts">{body}</table>'


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{escape(str(key))} {escape(str(value))}" for key, value in values.items())


def _section(section: Section) -> str:
    figures = "\n".join(map(_figure, section.figures))
    lines = [figure for figure in section.figures if figure.kind == "line"]  # bars are named by their title
    return (
        f'<section id="{section.title.split()[0].lower()}">'
        f"<header><h2>{escape(section.title)}</h2>\n<p>{escape(section.text)}</p>\n{_list(section.points)}"
        f'{_legend(lines)}</header>\n<div class="grid">\n{figures}\n</div></section>'
    )


def _figure(figure: Figure) -> str:
    own = _legend([figure]) if figure.kind in ("stack", "rows") else ""
    return f'<figure><h3>{escape(figure.title)}</h3>{own}<div class="plot" id="{figure.id}"></div></figure>'


def _list(lines: Sequence[str], key: str = "") -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<ul{key}>{items}</ul>" if items else ""


def _legend(figures: Sequence[Figure]) -> str:
    entries: dict[str, Series] = {s.name: s for figure in figures for s in figure.series if s.y}
    items = "".join(
        f'<li><svg width="12" height="12" fill="{s.colour}">{SHAPES[s.shape]}</svg>{escape(name)}</li>'
        for name, s in entries.items()
    )
    return f'<ul class="legend">{items}</ul>' if items else ""


def _back(summary: dict[str, Any]) -> str:
    flags = [
        ["server", "how it was started"],
        *(
            [server["label"], " ".join(server["flags"]) if server["flags"] else f"ran at {server['url']}"]
            for server in summary["servers"].values()
        ),
    ]
    return "\n".join(
        [
            "<h2>Servers</h2>",
            _table(flags, "facts", text=2),
            "<h2>Every cell</h2>",
            "<p>Server, load and repetition; in brackets 95 % bootstrap intervals over requests. Goodput and errors "
            "count all requests of the measured window, latencies those that were answered.</p>",
            _table(cell_table(summary), "cells", text=1),
            "<h2>Check these numbers</h2>",
            "<p>All of them are computed from <code>cells/*/*/*/requests.jsonl</code> and <code>run.json</code> "
            "beside this page. <code>jetspec loadtest audit DIR</code>, or <code>python loadtest/audit.py DIR</code> "
            "with nothing but Python, computes them again and compares; definitions are in "
            "<code>loadtest/metrics.py</code>.</p>",
        ]
    )


def _table(rows: Sequence[Row], kind: str, *, text: int) -> str:
    """`text` columns are left-aligned. A line divides groups of equal first columns, where these repeat."""
    head, *body = rows
    grouped = len({row[0] for row in body}) < len(body)
    cells = "".join(_cell("th", i, value, text) for i, value in enumerate(head))
    lines = [f"<thead><tr>{cells}</tr></thead>"]
    before = None
    for row in body:
        first = ' class="first"' if grouped and row[0] != before else ""
        before = row[0]
        cells = "".join(_cell("td", i, value, text) for i, value in enumerate(row))
        lines.append(f"<tr{first}>{cells}</tr>")
    return f'<div class="scroll"><table class="{kind}">{"".join(lines)}</table></div>'


def _cell(tag: str, column: int, value: str, text: int) -> str:
    side = ' class="text"' if column < text else ""
    return f"<{tag}{side}>{escape(value)}</{tag}>"
