"""A study's raw files → every number that its report publishes. Standard library only, as the audit runs this.

A *cell* is one server under one load, once; `metrics.summarise` gives its numbers. A *point* is a server under a
load: the median of its valid cells, with the lowest and the highest. Numbers are rounded to 6 significant digits,
so that they are the same on every machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from .metrics import Slo, summarise
from .records import REQUESTS, RUN, RecordError, Run, read_requests, read_run
from .validity import problems

STUDY = "study.json"  # written by the sweep: {"format", "config", "machine", "cells", "events"}
FORMAT = 1
STAGES = ("draft", "build", "verify", "accept", "commit")
RESAMPLES = 400  # of each cell's bootstrap

# What a point has, each as a path into `metrics.summarise`.
PERCENTILES = ("p50", "p90", "p99")
NUMBERS = (
    *(f"{name}.{p}.value" for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s") for p in PERCENTILES),
    "chunk_gap_s.p99.value",
    "tok_s_user.p50.value",
    "tok_s",
    "offered_rps",
    "completed_rps",
    "goodput_rps.value",
    "attainment.value",
    "error_rate.value",
    "cached_share.value",
    "tau.value",
    "nodes_per_round.value",
    "wasted_share.value",
)


class StudyError(ValueError):
    """What is wrong with a study's files, in one sentence."""


@dataclass(frozen=True)
class CellFiles:
    """A cell with its raw files read."""

    server: str
    kind: str  # "rate" or "concurrency"
    load: float
    repetition: int
    name: str
    run: Run
    numbers: dict[str, Any]

    @property
    def valid(self) -> bool:
        return self.run.valid


def read_study(folder: Path) -> dict[str, Any]:
    """The sweep's own file.

    Raises:
        StudyError: no such file, or it holds something else.
    """
    file = folder / STUDY
    try:
        study = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StudyError(f"{file} can't be read ({error}); is {folder} the folder of a sweep?") from error
    if not isinstance(study, dict):
        raise StudyError(f"{file} is not what a sweep writes; is {folder} the folder of a sweep?")
    if study.get("format") != FORMAT:
        raise StudyError(f"{file} has format {study.get('format')}; this version reads format {FORMAT}.")
    return study


def cell_folder(folder: Path, name: str) -> Path:
    return folder / "cells" / name


def summarise_study(folder: Path) -> dict[str, Any]:
    """All published numbers, ready for JSON; the same files give the same output.

    Raises:
        StudyError: a cell is missing, or a file is not what it should be.
    """
    study = read_study(folder)
    config = study["config"]
    cells = [_read_cell(folder, entry) for entry in study["cells"]]
    servers = list(study["servers"])
    cells.sort(key=lambda c: (c.kind != "rate", c.load, servers.index(c.server), c.repetition))
    return {
        "format": FORMAT,
        "title": config["title"],
        "notes": list(config["notes"]),
        "baseline": config["baseline"],
        "servers": study["servers"],
        "run": config["run"],
        "machine": study["machine"],
        "versions": cells[0].run.versions,
        "workload": cells[0].run.workload,
        "measured_utc": [min(c.run.zero_utc for c in cells), max(c.run.zero_utc for c in cells)],
        "events": study["events"],
        "cells": {
            cell.name: {"valid": cell.valid, "reasons": cell.run.reasons, "numbers": cell.numbers}
            for cell in cells
        },
        "points": _points(cells),
        "speedups": _speedups(cells, config["baseline"]),
        "rounds": {name: _rounds([c for c in cells if c.server == name]) for name in study["servers"]},
        "raw": {
            str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in raw_files(folder, study)
        },
    }


def raw_files(folder: Path, study: dict[str, Any]) -> list[Path]:
    """Everything that the numbers are made from."""
    cells = [cell_folder(folder, entry["name"]) for entry in study["cells"]]
    return [folder / STUDY, *(cell / name for cell in cells for name in (RUN, REQUESTS))]


def significant(value: Any) -> Any:
    """All numbers within, to 6 significant digits."""
    if isinstance(value, dict):
        return {key: significant(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [significant(inner) for inner in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _read_cell(folder: Path, entry: dict[str, Any]) -> CellFiles:
    place = cell_folder(folder, entry["name"])
    if not place.is_dir():
        raise StudyError(f"cell {entry['name']} is not measured yet: run the sweep again, it goes on.")
    try:
        run, requests = read_run(place), read_requests(place)
    except RecordError as error:
        raise StudyError(f"cell {entry['name']}: {error}") from error
    if (run.cell, run.method) != (entry["name"], entry["server"]):
        raise StudyError(f"cell {entry['name']}: its {RUN} is of cell {run.cell}, method {run.method}.")
    if run.valid and (reasons := problems(requests, run.schedule_s, run.loop, stopped_early=False)):
        raise StudyError(
            f"cell {entry['name']}: {RUN} calls it valid, its records do not: {' '.join(reasons)}"
        )
    slo = Slo(*(run.config.get(f"slo_{name}_s") for name in ("ttft", "tpot", "e2e")))
    numbers = significant(summarise(requests, run, slo=slo, resamples=RESAMPLES))
    return CellFiles(**entry, run=run, numbers=numbers)


def pick(numbers: dict[str, Any], path: str) -> float | None:
    """`"ttft_s.p50.value"` of a cell's numbers; None where the server did not tell."""
    value: Any = numbers
    for key in path.split("."):
        if value is None:
            return None
        value = value[key]
    return value


def spread(values: Iterable[float | None]) -> dict[str, float] | None:
    """Median, lowest and highest of what is known."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return significant({"median": float(median(known)), "low": min(known), "high": max(known)})


def _points(cells: Sequence[CellFiles]) -> list[dict[str, Any]]:
    points = []
    for key, group in _grouped(cells).items():
        valid = [cell for cell in group if cell.valid]
        points.append(
            {
                **dict(zip(("server", "kind", "load"), key, strict=True)),
                "cells": len(group),
                "valid": len(valid),
                "sent": sum(cell.numbers["sent"] for cell in valid),
                "failed": sum(cell.numbers["failed"] for cell in valid),
                "numbers": {path: spread(pick(c.numbers, path) for c in valid) for path in NUMBERS},
            }
        )
    return points


def _grouped(cells: Sequence[CellFiles]) -> dict[tuple[str, str, float], list[CellFiles]]:
    """By server and load, in the order given."""
    groups: dict[tuple[str, str, float], list[CellFiles]] = {}
    for cell in cells:
        groups.setdefault((cell.server, cell.kind, cell.load), []).append(cell)
    return groups


def _speedups(cells: Sequence[CellFiles], baseline: str) -> list[dict[str, Any]]:
    """How many times faster than the baseline, each repetition against the baseline's own of that repetition.

    In a closed loop tok/s over the baseline's tok/s; at a rate, where all servers give out what comes in, the
    baseline's median TPOT over this server's.
    """
    groups = _grouped(cells)
    found = []
    for (server, kind, load), group in groups.items():
        if server == baseline:
            continue
        plain = {cell.repetition: cell for cell in groups[(baseline, kind, load)] if cell.valid}
        ratios = [
            _speedup(cell, plain[cell.repetition])
            for cell in group
            if cell.valid and cell.repetition in plain
        ]
        found.append({"server": server, "kind": kind, "load": load, "speedup": spread(ratios)})
    return found


def _speedup(cell: CellFiles, plain: CellFiles) -> float | None:
    if cell.kind == "concurrency":
        above, below = pick(cell.numbers, "tok_s"), pick(plain.numbers, "tok_s")
    else:
        above, below = pick(plain.numbers, "tpot_s.p50.value"), pick(cell.numbers, "tpot_s.p50.value")
    return above / below if above and below else None


def _rounds(cells: Sequence[CellFiles]) -> dict[str, Any] | None:
    """What a server's rounds were like, over all its valid cells; None of one that has none.

    `histogram[k]` counts the rounds that accepted k drafts, from the requests. The rest is what the server counted
    between the two looks at it around each cell, warm-up and draining included: `stage_ms` is milliseconds of each
    stage in a round, `widths` the rounds by nodes a request for each load, of an adaptive budget. `ceiling` is
    the most drafts a round can accept.
    """
    valid = [cell for cell in cells if cell.valid]
    histogram = _added(cell.numbers["histogram"] for cell in valid)
    seconds, rounds = dict.fromkeys(STAGES, 0.0), 0
    widths: dict[str, dict[str, int]] = {}
    ceiling = None
    for cell in valid:
        before, after = (_jetspec(state) for state in (cell.run.server_before, cell.run.server_after))
        if after is None:
            continue
        rounds += after["rounds"] - (before["rounds"] if before else 0)
        for stage in STAGES:
            seconds[stage] += after["stage_seconds"][stage] - (
                before["stage_seconds"][stage] if before else 0.0
            )
        ceiling = (after.get("ceiling") or {}).get("depth", ceiling)
        chosen = widths.setdefault(f"{cell.kind}-{cell.load:g}", {})
        for nodes, count in _widths(after, before).items():
            chosen[nodes] = chosen.get(nodes, 0) + count
    if histogram is None and not rounds:
        return None
    return significant(
        {
            "histogram": histogram,
            "ceiling": ceiling,
            "rounds": rounds,
            "stage_ms": {stage: 1000 * seconds[stage] / rounds for stage in STAGES} if rounds else None,
            "widths": {
                load: dict(sorted(counts.items(), key=lambda item: int(item[0])))
                for load, counts in widths.items()
                if counts
            }
            or None,
        }
    )


def _jetspec(server_info: dict[str, Any] | None) -> dict[str, Any] | None:
    states = (server_info or {}).get("internal_states") or [{}]
    return states[0].get("jetspec")


def _widths(after: dict[str, Any], before: dict[str, Any] | None) -> dict[str, int]:
    """Rounds by nodes a request that a budget policy chose meanwhile; empty for a fixed one."""
    counts: dict[str, int] = {}
    for state, sign in ((after, 1), (before or {}, -1)):
        decided = state.get("adaptive") or state.get("bandit") or {}
        for by_nodes in (decided.get("rounds_by_batch_and_nodes") or {}).values():
            for nodes, rounds in by_nodes.items():
                counts[nodes] = counts.get(nodes, 0) + sign * rounds
    return {nodes: rounds for nodes, rounds in counts.items() if rounds}


def _added(histograms: Iterable[list[int] | None]) -> list[int] | None:
    known = [histogram for histogram in histograms if histogram]
    if not known:
        return None
    return [sum(h[k] for h in known if k < len(h)) for k in range(max(map(len, known)))]
