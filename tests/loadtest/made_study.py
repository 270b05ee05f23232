"""A small study without a server: raw files as a sweep leaves them, from a made-up queue."""

import json
import random
from pathlib import Path

from jetspec_sglang.loadtest.records import Request, Run, write_requests, write_run
from jetspec_sglang.loadtest.report_summary import FORMAT, STUDY, cell_folder
from jetspec_sglang.loadtest.sweep_config import SweepConfig
from jetspec_sglang.loadtest.sweep_plan import Cell

LABELS = {
    "plain": "plain decoding",
    "chain": "JETSPEC chain, 16 nodes",
    "tree16": "JETSPEC, 16 nodes",
    "tree32": "JETSPEC, 32 nodes",
    "adaptive": "JETSPEC, adaptive budget",
}
PACE = {"plain": 0.025, "chain": 0.020, "tree16": 0.018, "tree32": 0.022, "adaptive": 0.0175}
TOKENS = 32
DEPTH = 7


def config(
    servers: tuple[str, ...] = tuple(LABELS),
    rates: tuple[float, ...] = (0.25, 0.5, 1, 2, 4),
    concurrencies: tuple[int, ...] = (1, 2, 4, 8),
    repetitions: int = 2,
    seconds: float = 20,
) -> SweepConfig:
    return SweepConfig(
        title="A made-up study",
        notes=("Made-up numbers: a queue with one server, to try the report.",),
        servers={name: {"label": LABELS[name], "args": ["--flag", name]} for name in servers},
        common_args=("--model-path", "builtin:target", "--dtype", "bfloat16"),
        baseline="plain",
        rates=rates,
        concurrencies=concurrencies,
        repetitions=repetitions,
        run={
            "duration_s": seconds, "warmup_s": 2, "max_tokens": TOKENS,
            "slo_ttft_s": 1.0, "slo_tpot_s": 0.06, "slo_e2e_s": 4.0,
        },
    )  # fmt: skip


def write_study(folder: Path, plan: SweepConfig) -> Path:
    """All raw files of a finished sweep of `plan`."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for cell in plan.cells():
        place = cell_folder(folder, cell.name)
        place.mkdir(parents=True)
        write_cell(place, cell, plan)
        entries.append(
            {
                "name": cell.name, "server": cell.server, "kind": cell.load.kind, "load": float(cell.load.value),
                "repetition": cell.repetition,
            }
        )  # fmt: skip
    study = {
        "format": FORMAT,
        "config": plan.model_dump(mode="json"),
        "servers": {
            name: {"label": LABELS[name], "flags": plan.flags(name), "url": None} for name in plan.servers
        },
        "machine": {"processor": "made up", "cores": 2},
        "cells": entries,
        "events": [
            {
                "server": "chain",
                "cell": "chain/rate-1/1",
                "what": "ended while it was measured; started again, the cell repeated.",
            }
        ],
    }
    (folder / STUDY).write_text(json.dumps(study, indent=1))
    return folder


def write_cell(place: Path, cell: Cell, plan: SweepConfig) -> None:
    dice = random.Random(cell.name)
    run = plan.run_of(cell, "http://127.0.0.1:1")
    pace = PACE[cell.server] * dice.uniform(0.97, 1.03)
    speculates = cell.server != "plain"
    due, free, number = 0.0, 0.0, 0
    requests: list[Request] = []
    schedule: list[float] = []
    while True:
        if cell.load.kind == "rate":
            due += dice.expovariate(cell.load.value)
            begin = max(due, free - 0.3)
        else:
            due = (number // int(cell.load.value)) * pace * TOKENS * (1 + 0.15 * cell.load.value)
            begin = due
        if due >= run.end_s:
            break
        schedule.append(due)
        number += 1
        slow = pace * (1 + 0.15 * cell.load.value) if cell.load.kind == "concurrency" else pace
        requests.append(answer(dice, cell, number, due, begin, slow, speculates, run.warmup_s))
        free = requests[-1].end_s
    write_requests(place, requests)
    write_run(
        place,
        Run(
            cell=cell.name,
            method=cell.server,
            config=run.model_dump(mode="json"),
            workload={"name": "builtin", "conversations": 48, "sha256": "0" * 64},
            zero_utc=f"2026-11-29T12:{dice.randrange(60):02d}:00Z",
            schedule_s=schedule if cell.load.kind == "rate" else None,
            window_s=[run.warmup_s, run.end_s],
            workers=1,
            lag={"p50_s": 0.0, "p90_s": 0.001, "p99_s": 0.001, "max_s": 0.001},
            loop={"p50_s": 0.0, "p90_s": 0.001, "p99_s": 0.001, "max_s": 0.001},
            valid=True,
            reasons=[],
            machine={"cpu": "made up", "cores": 2},
            versions={"locust": "2.47.0", "python": "3.11"},
            server_before={"internal_states": [state(cell, [], pace) if speculates else {}]},
            server_after={"internal_states": [state(cell, requests, pace) if speculates else {}]},
        ),
    )


def answer(
    dice: random.Random,
    cell: Cell,
    number: int,
    due: float,
    begin: float,
    pace: float,
    speculates: bool,
    warmup: float,
) -> Request:
    """One answer of `TOKENS` tokens, in pieces of one to `DEPTH` + 1."""
    time, left, chunks, histogram = begin + 0.1 * dice.uniform(0.9, 1.1), TOKENS - 1, [], [0] * (DEPTH + 1)
    chunks.append([time, 1])
    while left:
        accepted = min(left - 1, DEPTH, int(dice.expovariate(0.8))) if speculates else 0
        histogram[accepted] += 1
        time += pace * (accepted + 1)
        left -= accepted + 1
        chunks.append([time, accepted + 1])
    rounds = len(chunks) - 1
    nodes = {"chain": 8, "tree32": 32}.get(cell.server, 16)
    return Request(
        id=f"{number}.0",
        cell=cell.name,
        method=cell.server,
        phase="warmup" if due < warmup else "measure",
        api="generate",
        scheduled_s=due,
        start_s=due,
        end_s=time,
        first_token_s=chunks[0][0],
        chunks=chunks,
        prompt_tokens=40,
        completion_tokens=TOKENS,
        cached_tokens=4,
        rounds=rounds if speculates else None,
        accepted_drafts=TOKENS - 1 - rounds if speculates else None,
        nodes=rounds * nodes if speculates else None,
        histogram=histogram if speculates else None,
        domain="chat",
        prompt=number % 48,
        max_tokens=TOKENS,
        status=200,
    )


def state(cell: Cell, requests: list[Request], pace: float) -> dict:
    """What a JETSPEC server says of itself in /server_info after these requests."""
    rounds = sum(request.rounds for request in requests)
    histogram = [sum(counts) for counts in zip(*(request.histogram for request in requests), strict=True)]
    shares = {"draft": 0.15, "build": 0.01, "verify": 0.78, "accept": 0.02, "commit": 0.04}
    told: dict = {
        "rounds": rounds,
        "request_rounds": rounds,
        "verified_nodes": sum(request.nodes for request in requests),
        "accepted_drafts_histogram": {str(k): count for k, count in enumerate(histogram)},
        "stage_seconds": {name: share * rounds * pace * 2 for name, share in shares.items()},
        "ceiling": {"depth": DEPTH},
    }
    if cell.server == "adaptive":
        small = int(rounds * min(0.9, cell.load.value / 8))
        told["adaptive"] = {
            "rounds_by_batch_and_nodes": {
                "1": {"32": (rounds - small) // 2, "16": rounds - small - (rounds - small) // 2},
                "4": {"4": small // 2, "1": small - small // 2},
            }
        }
    return {"jetspec": told}
