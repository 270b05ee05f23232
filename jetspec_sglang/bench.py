"""``jetspec bench``: micro-benchmarks. Each is one function, a command of the group in `cli.COMMANDS`.

Variants take turns in every repeat and the median is shown, so that ratios hold on a machine with other work. On
the CPU times are CPU time of the process with torch on one thread, for the same reason; with an accelerator they
are wall time.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from .compare import CompareError, ending_cleanly, writable
from .eval_grid import parse_numbers
from .machine import describe
from .tree import DraftProposal, TokenTree, ancestor_mask, build_tree
from .tree.build_heap import build_heap
from .tree.build_reference import build_eager_reference, build_reference, shared_rows
from .tree.build_tensor import build_tensor
from .tree.score import ScoredRows

BASE = "heap reference"
WARM_UP = 3


def tree(
    budgets: Annotated[str, typer.Option(help="Nodes of a tree, root included.")] = "16,64,256",
    batches: Annotated[str, typer.Option(help="Requests in a batch.")] = "1,8,32",
    width: Annotated[int, typer.Option(min=1, help="Candidates a depth.")] = 16,
    depth: Annotated[int, typer.Option(min=1, help="Depths.")] = 15,
    repeats: Annotated[int, typer.Option(min=1, help="Timed calls of each builder.")] = 50,
    device: Annotated[str, typer.Option(help="Where the tensor builders run.")] = "cpu",
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write everything as JSON.")] = None,
) -> None:
    """Time the tree builders: compiled, in tensor operations, and the plain heaps they are tested against."""
    with ending_cleanly("jetspec bench tree"):
        sizes = [
            (n, b) for n in parse_numbers("--budgets", budgets) for b in parse_numbers("--batches", batches)
        ]
        writable(json_path)
        _usable(device)
    torch.set_num_threads(1)
    clock = time.process_time if device == "cpu" else time.perf_counter
    rows = []
    for budget, batch in track(sizes, description="trees", transient=True):
        seconds = interleave(builders(peaked_proposal(batch, depth, width), budget, device), repeats, clock)
        rows += [
            {"builder": name, "budget": budget, "batch": batch, "us_per_request": value / batch * 1e6}
            for name, value in seconds.items()
        ]
    settings = {"width": width, "depth": depth, "repeats": repeats, "device": device, "clock": clock.__name__}
    Console().print(tree_table(rows, settings))
    if json_path:
        result = {"machine": describe(), "settings": settings, "rows": rows}
        json_path.write_text(json.dumps(result, indent=2) + "\n")


def builders(proposal: DraftProposal, budget: int, device: str) -> dict[str, Callable[[], Any]]:
    """Every builder on the same candidates, and what a round calls: build and mask, checks included."""
    anchors = torch.zeros(proposal.batch_size, dtype=torch.int64)
    rows = ScoredRows(proposal.token_ids, proposal.logprobs, proposal.logprobs, None)
    there = ScoredRows(rows.token_ids.to(device), *[rows.logprobs.to(device)] * 2, None)

    def plain(build: Callable) -> Callable[[], Any]:
        return lambda: [build(shared_rows(rows, b), 0, budget) for b in range(len(anchors))]

    def tensor(eager: bool) -> Callable[[], TokenTree]:
        anchors_there = anchors.to(device)

        def run() -> TokenTree:
            tree = build_tensor(there, anchors_there, budget, sizes=None, eager=eager)
            if device != "cpu":
                torch.get_device_module(device).synchronize()
            return tree

        return run

    return {
        BASE: plain(build_reference),
        "batched": lambda: build_heap(rows, anchors, budget, sizes=None, eager=False),
        "tensor": tensor(eager=False),
        "tree + mask": lambda: ancestor_mask(build_tree(proposal, anchors, budget)),
        "eager reference": plain(build_eager_reference),
        "eager batched": lambda: build_heap(rows, anchors, budget, sizes=None, eager=True),
        "eager tensor": tensor(eager=True),
    }


def peaked_proposal(batch: int, depth: int, width: int) -> DraftProposal:
    """Rows as a drafter has them: some nearly certain, some flat. Reproducible."""
    dice = torch.Generator().manual_seed(0)
    sharpness = 2 + 6 * torch.rand(batch, depth, 1, generator=dice)
    logits = sharpness * torch.randn(batch, depth, max(4096, width), generator=dice)
    logprobs, token_ids = logits.log_softmax(-1).topk(width)
    return DraftProposal(token_ids, logprobs)


def interleave(
    variants: dict[str, Callable[[], Any]], repeats: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Median seconds by `clock` of a call of each variant; all take their turn in every repeat, and warm up before."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(WARM_UP + repeats):
        for name, run in variants.items():
            start = clock()
            run()
            seconds[name].append(clock() - start)
    return {name: statistics.median(values[WARM_UP:]) for name, values in seconds.items()}


def tree_table(rows: list[dict[str, Any]], settings: dict[str, Any]) -> Table:
    """Microseconds a request, and how many times faster than the heap reference."""
    names = list(dict.fromkeys(row["builder"] for row in rows))
    title = "µs a request (times faster than the heap reference), W = {width}, D = {depth}"
    table = Table(title=title.format(**settings))
    for column in ("budget", "batch", *names):
        table.add_column(column, justify="right")
    cells = {(row["budget"], row["batch"], row["builder"]): row["us_per_request"] for row in rows}
    for budget, batch in dict.fromkeys((row["budget"], row["batch"]) for row in rows):
        values = [cells[budget, batch, name] for name in names]
        shown = (f"{value:.1f} ({cells[budget, batch, BASE] / value:.1f}×)" for value in values)
        table.add_row(str(budget), str(batch), *shown)
    return table


def _usable(device: str) -> None:
    """Raises CompareError if torch can't compute there."""
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:  # the latter where torch was built without it
        reason = str(error).splitlines()[0]
        raise CompareError(
            f"--device {device} can't be used here ({reason}); give cpu or another."
        ) from error
