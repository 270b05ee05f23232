"""What `jetspec eval` shows on the terminal: τ and speed-up by domain, and where the time of a round goes."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .eval_grid import PLAIN, Configuration
from .eval_rows import ALL, Measurement, ceilings, stages, summarise
from .figures import save
from .round_stats import STAGES


def show(
    console: Console,
    run: Mapping[str, Any],
    measured: Sequence[Measurement],
    json_file: Path | None,
    plot: Path | None,
) -> None:
    """Everything that the user asked to see of a measurement, or of a file of one."""
    console.print(*tables(measured))
    rows = summarise(measured)
    if json_file:
        result = {**run, "rows": rows, "stages": stages(measured), "ceilings": ceilings(measured)}
        json_file.write_text(json.dumps(result, indent=2) + "\n")
    if plot:
        from .eval_plot import figure

        save(figure(run, rows), plot)


def tables(measured: Sequence[Measurement]) -> Iterator[Table]:
    """τ and speed-up a domain; speed, stage shares and the block's end a configuration."""
    rows = summarise(measured)
    domains = [*dict.fromkeys(row["domain"] for row in rows if row["domain"] != ALL), ALL]
    cells = {(_configuration(row), row["domain"]): row for row in rows}
    shares = {_configuration(row): row for row in stages(measured)}
    ends = {_configuration(row): row for row in ceilings(measured)}
    several = len({configuration.drafter for configuration, _ in cells}) > 2

    quality = Table(title="accept length τ and speed-up over plain decoding")
    cost = Table(
        title="tokens a second, and where the time of a round goes",
        caption="whole block: rounds that accepted all drafts of a block; ! more of them than the decay of "
        "shorter ones predicts, so that the block is too short",
    )
    for table, headings in ((quality, domains), (cost, ("tok/s", "rounds", *STAGES, "whole block"))):
        table.add_column("configuration", overflow="fold")
        for heading in headings:
            table.add_column(heading, justify="right")
    for configuration in dict.fromkeys(configuration for configuration, _ in cells):
        name = configuration.name
        if several and configuration != PLAIN:
            name = f"{configuration.drafter}: {name}"
        found = (cells.get((configuration, domain)) for domain in domains)
        quality.add_row(name, *(_pair(row) for row in found))
        total, share, end = cells[configuration, ALL], shares.get(configuration), ends.get(configuration)
        cost.add_row(
            name,
            _format(total["tok_s"], ".1f"),
            str(total["rounds"]),
            *(f"{share[stage]:.0%}" if share else "" for stage in STAGES),
            _whole_block(end),
        )
    yield quality
    yield cost


def _pair(row: dict[str, Any] | None) -> str:
    return f"{row['tau']:.2f}  {_format(row['speedup'], '.2f')}x" if row else ""


def _whole_block(row: dict[str, Any] | None) -> str:
    if row is None or row["share"] is None:
        return ""
    return f"{row['share']:.1%}" + (" !" if row["spike"] else "")


def _format(value: float | None, how: str) -> str:
    return "–" if value is None else format(value, how)


def _configuration(row: dict[str, Any]) -> Configuration:
    return Configuration(**{key: row[key] for key in Configuration.__dataclass_fields__})
