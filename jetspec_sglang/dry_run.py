"""Rounds before the first request, to learn what rounds cost here.

They run the worker's own code on a batch of nobody's: its rows in the slot table are still all zero, so that
everything is read from and written to the padding slot.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch
from sglang.srt.managers.schedule_batch import ScheduleBatch

from .inputs import RoundState
from .stage_clock import FinishedRound
from .tree.budget import CostModel, RoundShape, Sample

if TYPE_CHECKING:
    from .worker import JetSpecWorker

logger = logging.getLogger(__name__)

SHORT, LONG = 64, 448  # committed tokens of a request, as far as the model's context allows
REPEATS = 4
MOST_ROWS = 512  # target rows of one round: more would only take time, the curve is straight by then


def measure_cost(worker: JetSpecWorker) -> CostModel:
    """Run rounds of several sizes and fit the cost model to them; a few seconds."""
    began = time.perf_counter()
    kinds = shapes(*_limits(worker))
    # All kinds in turn, not each for itself: what else the machine does for a while then meets every kind once.
    _warm_up, *passes = [[_round(worker, shape) for shape in kinds] for _ in range(1 + REPEATS)]
    samples = [_sample(shape, rounds) for shape, *rounds in zip(kinds, *passes, strict=True)]
    logger.info("JETSPEC measured %d kinds of rounds in %.1f s.", len(samples), time.perf_counter() - began)
    return CostModel(samples)


def shapes(requests: int, budget: int, max_depth: int, context: int) -> list[RoundShape]:
    """What to measure: powers of four of requests by powers of two of nodes, and one request with a long context, plain
    and with a tree."""
    batches = [b for b in (4**i for i in range(8)) if b < requests] + [requests]
    nodes = sorted({1, 2, 4, budget} | {2**i for i in range(3, 11) if 2**i < budget})
    short = max(1, min(SHORT, context))
    found = [
        RoundShape(b, n, min(max_depth, n - 1), short)
        for b in batches
        for n in nodes
        if n <= budget and b * n <= max(MOST_ROWS, budget, requests)
    ]
    if context > 2 * short:
        found += [RoundShape(1, n, min(max_depth, n - 1), min(LONG, context)) for n in {1, min(8, budget)}]
    return found


def _limits(worker: JetSpecWorker) -> tuple[int, int, int, int]:
    runner = worker.runner
    room = runner.model_config.context_len - worker.config.budget - worker.config.block_length
    return runner.req_to_token_pool.size, worker.config.budget, worker.max_depth, room


def _round(worker: JetSpecWorker, shape: RoundShape) -> FinishedRound:
    settings = [replace(worker.settings, budget=shape.nodes, acceptance="match")] * shape.batch
    with torch.inference_mode():
        worker.round(_batch(worker, shape), settings, lambda seq_lens: None)
    worker.clock.interrupted()
    if torch.device(worker.device).type != "cpu":
        torch.get_device_module(worker.device).synchronize()
    [finished] = worker.clock.finished()
    return finished


def _sample(shape: RoundShape, rounds: Sequence[FinishedRound]) -> Sample:
    return Sample(
        shape,
        draft=_least(rounds, ("draft",)),
        verify=_least(rounds, ("verify",)),
        rest=_least(rounds, ("build", "accept", "commit")),
    )


def _least(rounds: Sequence[FinishedRound], stages: Sequence[str]) -> float:
    """What else a machine does only adds time."""
    return min(sum(r.seconds.get(stage, 0.0) for stage in stages) for r in rounds)


def _batch(worker: JetSpecWorker, shape: RoundShape) -> ScheduleBatch:
    """`shape.batch` greedy requests that exist in no queue."""
    runner, device = worker.runner, worker.device
    lens = torch.full((shape.batch,), shape.context, dtype=torch.int64)
    return ScheduleBatch(
        reqs=[],
        device=device,
        model_config=runner.model_config,
        req_to_token_pool=runner.req_to_token_pool,
        spec_algorithm=runner.spec_algorithm,
        seq_lens=lens.to(device),
        seq_lens_cpu=lens,
        req_pool_indices=torch.arange(shape.batch, device=device),
        sampling_info=_GREEDY,
        spec_info=RoundState(torch.zeros(shape.batch, dtype=torch.int64, device=device)),
    )


_GREEDY = SimpleNamespace(
    is_all_greedy=True,
    is_any_greedy=True,
    acc_additive_penalties=None,
    acc_scaling_penalties=None,
    logit_bias=None,
    grammars=None,
)
