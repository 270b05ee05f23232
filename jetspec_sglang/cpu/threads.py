"""How many threads the model's operations use."""

from __future__ import annotations

import os

import torch


def use_serving_threads() -> None:
    """Leave one core to the other processes of the server, unless OMP_NUM_THREADS says otherwise.

    Each operation waits for its slowest thread. A thread that shares its core with the tokenizer, the
    detokenizer or anything else makes every operation of a step wait: on two cores with one of them busy,
    two threads took 12 times as long a step as one, and with both idle they saved a sixth.
    """
    if not os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(serving_threads(usable_cores()))


def serving_threads(cores: int) -> int:
    return max(cores - 1, 1)


def usable_cores() -> int:
    """Cores that this process may run on, counting a hyper-threaded core once where torch does."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(allowed, torch.get_num_threads())
