"""The few places where SGLang has no seam for a plugin, and what is put there."""

from sglang.srt.environ import envs
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from jetspec_sglang.drafters.no_head import NoHead

from .algorithm import NAME
from .served_head import drafted_depth, served_head

# In full, as the check of the contract with SGLang reads them.
SLOTS_PER_ROUND = "sglang.srt.mem_cache.allocation_sizing.get_alloc_len_per_decode"
ROW_HEADROOM = "sglang.srt.mem_cache.allocation_sizing.get_req_to_token_extra_context_len"
FEATURES = (
    "sglang.srt.model_executor.model_runner_components.spec_aux_hidden_state."
    "resolve_spec_aux_hidden_state_config"
)
SERVER_INFO = (
    "sglang.srt.managers.scheduler_components.internal_state."
    "SchedulerInternalStateController._add_speculative"
)


def install() -> None:
    """Register all hooks; SGLang applies them when every plugin has run."""
    HookRegistry.register(SLOTS_PER_ROUND, slots_per_round, HookType.AROUND)
    HookRegistry.register(ROW_HEADROOM, row_headroom, HookType.AFTER)
    HookRegistry.register(FEATURES, features_of_head, HookType.AROUND)
    HookRegistry.register(SERVER_INFO, add_round_stats, HookType.AFTER)


def _selected() -> bool:
    from sglang.srt.runtime_context import get_spec

    return get_spec().speculative_algorithm == NAME


def slots_per_round(original) -> int:
    """Slots one round may write: the tree's nodes or what drafting them takes, whichever is more.

    SGLang takes steps x top-k, an EAGLE footprint that an irregular tree doesn't have.
    """
    if not _selected():
        return original()
    from sglang.srt.runtime_context import get_spec

    return max(get_spec().speculative_num_draft_tokens, served_head().slots(drafted_depth()))


def row_headroom(extra: int) -> int | None:
    """Widen the slot table's rows to hold what `slots_per_round` reserves.

    At page size 1 SGLang keeps room for one round behind the context, but reserves two: near the context's end
    a request would write into the next request's row.
    """
    if not _selected():
        return None
    from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode

    return max(extra, get_alloc_reserve_per_decode() + 4)


def features_of_head(original, *, server_args, model_config, spec_algorithm, is_draft_worker):
    """Let the target hand out the taps that our reader found, and reserve memory for what the drafter keeps.

    SGLang would read the head as DFLASH's: it knows neither the taps of other formats nor that an EAGLE-3 drafter keeps
    features. Its check of the head's length doesn't apply: drafts are made at the target's positions, however short
    the texts were that the head was trained on. Without a head nothing is captured.
    """
    if not _selected() or is_draft_worker:
        return original(
            server_args=server_args,
            model_config=model_config,
            spec_algorithm=spec_algorithm,
            is_draft_worker=is_draft_worker,
        )
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.model_executor.model_runner_components.spec_aux_hidden_state import (
        SpecAuxHiddenStateConfig,
    )
    from sglang.srt.runtime_context import get_spec

    head = served_head()
    if isinstance(head, NoHead):
        return SpecAuxHiddenStateConfig()
    with envs.SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN.override(True):
        draft = ModelConfig.from_server_args(
            server_args, model_path=get_spec().speculative_draft_model_path, is_draft_model=True
        )
    return SpecAuxHiddenStateConfig(
        dflash_use_aux_hidden_state=True,
        dflash_target_layer_ids=list(head.taps(model_config.num_hidden_layers)),
        dflash_draft_num_layers=head.cached_layers,
        draft_model_config=draft,
    )


def add_round_stats(result, component, state: dict) -> None:
    """Add `jetspec` to `/server_info`: what `JetSpecWorker.report` says."""
    from .worker import JetSpecWorker

    worker = component.scheduler.draft_worker
    if isinstance(worker, JetSpecWorker):
        state["jetspec"] = worker.report()
