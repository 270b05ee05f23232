"""The report of `jetspec quality` as one HTML page that needs nothing else: tables, and pictures as inline SVG."""

from __future__ import annotations

from html import escape
from io import StringIO
from pathlib import Path
from string import Template

import matplotlib

from .drafters.quality.rows import Measured
from .quality_plot import Panel, panel_figure, panels
from .quality_tables import Sheet, sheets

TEMPLATE = Path(__file__).with_name("quality_page.html")


def page(measured: Measured) -> str:
    """The whole page, a function of the raw results alone."""
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=escape(title(measured)),
        facts="\n".join(f"<li>{escape(fact)}</li>" for fact in facts(measured)),
        figures="\n".join(_figure(panel, measured) for panel in panels(measured)),
        sheets="\n".join(map(_sheet, sheets(measured))),
    )


def title(measured: Measured) -> str:
    return f"Tree quality of {', '.join(measured.heads)} for {measured.target}"


def facts(measured: Measured) -> list[str]:
    """What was measured, and on what."""
    heads = "; ".join(
        f"{label}: {head.drafter} ({head.folder}), {head.drafted} drafted tokens of {head.vocabulary:,}"
        for label, head in measured.heads.items()
    )
    answered, asked = len({each.prompt for each in measured.rounds}), len(measured.prompts)
    return [
        f"Heads: {heads}.",
        f"{len(measured.rounds)} rounds in the target's greedy answers to {answered} of {asked} prompts, a block of "
        f"the longest head apart, the same for all heads; {measured.dtype}.",
        "A round's branches are the likeliest whole blocks under the drafter's own distribution; the target scores "
        "each token with the branch's own tokens before it.",
        "Machine: " + ", ".join(f"{key} {value}" for key, value in measured.machine.items()) + ".",
    ]


def _figure(panel: Panel, measured: Measured) -> str:
    drawn = StringIO()
    # The ids that clip paths and glyphs refer to must not be those of another picture of the page.
    with matplotlib.rc_context({"svg.hashsalt": panel.name, "svg.fonttype": "none"}):
        panel_figure(panel, measured).savefig(drawn, format="svg", metadata={"Date": None})
    svg = drawn.getvalue()
    return f'<figure id="{panel.name}">{svg[svg.index("<svg") :]}</figure>'


def _sheet(sheet: Sheet) -> str:
    head = "".join(_cell("th", *each, sheet.text) for each in enumerate(sheet.headings))
    body = "".join(
        f"<tr>{''.join(_cell('td', *each, sheet.text) for each in enumerate(row))}</tr>" for row in sheet.rows
    )
    return (
        f"<section><h2>{escape(sheet.title)}</h2>"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        f"<p>{escape(sheet.note)}</p></section>"
    )


def _cell(tag: str, column: int, value: str, text: int) -> str:
    side = ' class="text"' if column < text else ""
    return f"<{tag}{side}>{escape(value)}</{tag}>"
