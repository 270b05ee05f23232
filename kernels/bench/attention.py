"""Time one layer's attention on the CPU beside SGLang's `torch_native`, interleaved in one run.

    python kernels/bench/attention.py --help

Times are CPU time of the process on one thread by default, so work of other processes weighs little; ratios
between the columns are what counts. `torch_native` knows no tree: its verify column is a causal block, computed
as it computes any extend.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from jetspec_sglang.kernels.tree_attention import AttentionPlan, tree_attention

SLOTS = 4096


def make_case(rows: int, context: int, heads: tuple[int, int, int], dtype: torch.dtype, scattered: bool):
    """Two closures over the same tensors: ours and SGLang's, each one layer of one request."""
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    q_heads, kv_heads, head_dim = heads
    key, value = (torch.randn(SLOTS, kv_heads, head_dim).to(dtype) for _ in range(2))
    query = torch.randn(rows, q_heads, head_dim).to(dtype)
    order = torch.randperm(SLOTS) if scattered else torch.arange(7, SLOTS)
    length = context + rows
    table = order[:length].to(torch.int32)[None]
    mask = torch.ones(1, rows, rows, dtype=torch.bool).tril() if rows > 1 else None
    plan = AttentionPlan([table[0]], [rows], mask)
    scale = head_dim**-0.5

    native = TorchNativeAttnBackend(
        SimpleNamespace(device="cpu", req_to_token_pool=None, token_to_kv_pool=None)
    )
    output = torch.empty_like(query)
    common = (query, output, key, value, table, torch.tensor([0]), torch.tensor([length]))
    if rows == 1:

        def theirs():
            return native._run_sdpa_forward_decode(*common, scaling=scale, enable_gqa=q_heads != kv_heads)
    else:
        extend = (torch.tensor([context]), torch.tensor([rows]))

        def theirs():
            return native._run_sdpa_forward_extend(
                *common, *extend, scaling=scale, enable_gqa=q_heads != kv_heads, causal=True
            )

    return {"jetspec_cpu": lambda: tree_attention(query, key, value, plan, scale), "torch_native": theirs}


def interleave(variants: dict, rounds: int, calls: int) -> dict[str, float]:
    """Median microseconds of CPU time a call; the variants take turns in every round."""
    samples = {name: [] for name in variants}
    for _ in range(rounds + 1):
        for name, run in variants.items():
            start = time.process_time()
            for _ in range(calls):
                run()
            samples[name].append((time.process_time() - start) / calls * 1e6)
    return {name: statistics.median(values[1:]) for name, values in samples.items()}  # the first warms up


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main(
    rows: Annotated[str, typer.Option(help="Query rows: 1 decodes, N verifies a tree of N.")] = "1,16",
    context: Annotated[str, typer.Option(help="Committed tokens.")] = "100,300,1000",
    heads: Annotated[str, typer.Option(help="query heads, key heads, head dimension")] = "9,3,64",
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32")] = "bfloat16",
    scattered: Annotated[bool, typer.Option(help="Slots in random order, so keys must be gathered.")] = False,
    threads: int = 1,
    rounds: int = 7,
    calls: int = 10,
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the rows as JSON.")] = None,
) -> None:
    """Compare the CPU attention of this project with SGLang's torch_native backend."""
    torch.set_num_threads(threads)
    shape = tuple(numbers(heads))
    results = []
    table = Table(
        title=f"one layer, heads {heads}, {dtype}, {'scattered' if scattered else 'one run of slots'}"
    )
    for column in ("rows", "context", "jetspec_cpu µs", "torch_native µs", "native / ours"):
        table.add_column(column, justify="right")
    with torch.no_grad():
        for count in numbers(rows):
            for length in numbers(context):
                times = interleave(
                    make_case(count, length, shape, getattr(torch, dtype), scattered), rounds, calls
                )
                ratio = times["torch_native"] / times["jetspec_cpu"]
                results.append({"rows": count, "context": length, **times, "ratio": ratio})
                table.add_row(
                    str(count), str(length), *(f"{value:.0f}" for value in times.values()), f"{ratio:.2f}"
                )
    Console().print(table)
    if json_path:
        json_path.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    typer.run(main)
