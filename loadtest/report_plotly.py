"""A figure as plotly's JSON. Standard library only; the page carries plotly.js and draws it."""

from __future__ import annotations

import math
from typing import Any

from .report_shapes import CEILING, Figure, Series

FONT = {"family": "system-ui, sans-serif", "size": 12, "color": "#222"}
GRID = {"gridcolor": "#e4e4e4", "linecolor": "#888", "zeroline": False, "automargin": True}


def plotly(figure: Figure) -> dict[str, Any]:
    """`{"data", "layout"}` for `Plotly.newPlot`. Legend and title stand outside, where they can't be in the way."""
    shown = [series for series in figure.series if series.y]
    draw = _line if figure.kind == "line" else _bars
    x_axis: dict[str, Any] = {**GRID, "title": {"text": figure.x_title}}
    if figure.x_is_load:
        loads = sorted({x for series in shown for x in series.x})
        x_axis |= {"type": "log", **_labelled(loads)}
    elif figure.kind != "line":
        x_axis |= {"type": "category"}
    y_axis = {**GRID, "title": {"text": figure.y_title}, "rangemode": "tozero"}
    if figure.y_ticks:
        ends = [math.log10(figure.y_ticks[0]), math.log10(figure.y_ticks[-1])]
        y_axis |= {"type": "log", "range": [round(end, 6) for end in ends], **_labelled(figure.y_ticks)}
    layout: dict[str, Any] = {
        "font": FONT,
        "showlegend": False,
        "height": 290,
        "margin": {"l": 56, "r": 14, "t": 10, "b": 44},
        "xaxis": x_axis,
        "yaxis": y_axis,
        "barmode": "group" if figure.kind == "bar" else "stack",
        "plot_bgcolor": "#fff",
        "paper_bgcolor": "#fff",
        "hoverlabel": {"align": "left"},
        "hovermode": "closest",
    }
    if figure.kind == "rows":
        x_axis["autorange"] = "reversed"  # the first server on top
        layout |= {"xaxis": y_axis, "yaxis": x_axis}
    if figure.level is not None:
        layout["shapes"] = [
            {
                "type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": figure.level, "y1": figure.level,
                "line": {"color": "#888", "dash": "dot", "width": 1},
            }
        ]  # fmt: skip
    return {"data": [draw(series, figure) for series in shown], "layout": layout}


def _line(series: Series, figure: Figure) -> dict[str, Any]:
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": series.name,
        "x": series.x,
        "y": series.y,
        "line": {"color": series.colour, "width": 2},
        "marker": {"color": series.colour, "symbol": series.shape, "size": 8},
        "text": series.hover,
        "hovertemplate": "%{text}<extra></extra>",
    }
    if series.low is not None and series.high is not None and series.low != series.high:
        trace["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": [_rounded(high - y) for y, high in zip(series.y, series.high, strict=True)],
            "arrayminus": [_rounded(y - low) for y, low in zip(series.y, series.low, strict=True)],
            "thickness": 1,
            "width": 3,
            "color": series.colour,
        }
    return trace


def _bars(series: Series, figure: Figure) -> dict[str, Any]:
    colours = [CEILING if i == figure.marked else series.colour for i in range(len(series.y))]
    rows = figure.kind == "rows"
    return {
        "type": "bar",
        "orientation": "h" if rows else "v",
        "name": series.name,
        "x": series.y if rows else series.x,
        "y": series.x if rows else series.y,
        "marker": {"color": colours},
        "text": series.hover,
        "textposition": "none",
        "hovertemplate": "%{text}<extra></extra>",
    }


def _labelled(ticks: list[float]) -> dict[str, Any]:
    return {"tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
