"""The few places where SGLang has no seam for a plugin, and what is put there."""

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from .algorithm import NAME

# In full, as the check of the contract with SGLang reads them.
SLOTS_PER_ROUND = "sglang.srt.mem_cache.allocation_sizing.get_alloc_len_per_decode"
ROW_HEADROOM = "sglang.srt.mem_cache.allocation_sizing.get_req_to_token_extra_context_len"
SERVER_INFO = (
    "sglang.srt.managers.scheduler_components.internal_state."
    "SchedulerInternalStateController._add_speculative"
)


def install() -> None:
    """Register all hooks; SGLang applies them when every plugin has run."""
    HookRegistry.register(SLOTS_PER_ROUND, slots_per_round, HookType.AROUND)
    HookRegistry.register(ROW_HEADROOM, row_headroom, HookType.AFTER)
    HookRegistry.register(SERVER_INFO, add_round_stats, HookType.AFTER)


def _selected() -> bool:
    from sglang.srt.runtime_context import get_spec

    return get_spec().speculative_algorithm == NAME


def slots_per_round(original) -> int:
    """Slots one round may write: the tree's nodes or the draft block, whichever is more.

    SGLang takes steps x top-k, an EAGLE footprint that an irregular tree doesn't have.
    """
    if not _selected():
        return original()
    from sglang.srt.runtime_context import get_spec

    spec = get_spec()
    return max(spec.speculative_num_draft_tokens, spec.speculative_num_steps + 1)


def row_headroom(extra: int) -> int | None:
    """Widen the slot table's rows to hold what `slots_per_round` reserves.

    At page size 1 SGLang keeps room for one round behind the context, but reserves two: near the context's end
    a request would write into the next request's row.
    """
    if not _selected():
        return None
    from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode

    return max(extra, get_alloc_reserve_per_decode() + 4)


def add_round_stats(result, component, state: dict) -> None:
    """Add `jetspec` to `/server_info`: what `JetSpecWorker.report` says."""
    from .worker import JetSpecWorker

    worker = component.scheduler.draft_worker
    if isinstance(worker, JetSpecWorker):
        state["jetspec"] = worker.report()
