"""`sglang.launch_server` with NaN in every KV slot that holds nothing: unwritten ones, and freed ones at once.

It also ends if the host takes a request for longer or shorter than it is.

Started as a script, so that the scheduler's process, which SGLang spawns, imports it too.
"""

import sys

import torch
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator

from jetspec_sglang.cpu.kv_pool import CpuKVPool

POOLS: list[CpuKVPool] = []  # of this process: target's and drafter's


def poison(pool: CpuKVPool, slots) -> None:
    for buffer in (*pool.k_buffer, *pool.v_buffer):
        buffer[slots] = torch.nan


def check_lengths() -> None:
    """What a budget plans with, and sizes masks by: known before every verify, however the batch has changed."""
    from jetspec_sglang.worker import JetSpecWorker

    verify = JetSpecWorker._verify

    def checked(self, verify_input, slots, batch):
        assert torch.equal(batch.seq_lens_cpu, batch.seq_lens)
        assert batch.seq_lens_sum == int(batch.seq_lens.sum())
        return verify(self, verify_input, slots, batch)

    JetSpecWorker._verify = checked


def install() -> None:
    made, freed = CpuKVPool.__init__, TokenToKVPoolAllocator.free

    def init(self, *args, **kwargs) -> None:
        made(self, *args, **kwargs)
        if not POOLS:
            check_lengths()
        poison(self, slice(None))
        POOLS.append(self)
        print("poisoned a KV pool", flush=True)  # the test looks for it

    def free(self, free_index) -> None:
        for pool in POOLS:
            poison(pool, free_index)
        freed(self, free_index)

    CpuKVPool.__init__, TokenToKVPoolAllocator.free = init, free


install()

if __name__ == "__main__":
    # What `python -m sglang.launch_server` does, but with this file as the main module, which spawned children import.
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins

    load_plugins()
    from sglang.srt import server_args

    run_server(server_args.prepare_server_args(sys.argv[1:]))
