"""JETSPEC as SGLang sees it: what kind of speculative algorithm it is, and its arguments."""

from sglang.srt.managers.overlap_utils import FutureMap
from sglang.srt.speculative.spec_registry import CustomSpecAlgo

NAME = "JETSPEC"


class JetSpecAlgo(CustomSpecAlgo):
    """Answers of the DFlash *family* (features of the target are captured, the draft KV lives in the target's
    slots), without being DFLASH, whose verify is a chain.

    SGLang 0.5.23 asks a plugin's algorithm four things that its own base class doesn't answer: `need_topk`,
    `carries_draft_hidden_states`, `get_platform_worker_cls` and `create_future_map`.
    """

    def is_dflash_family(self) -> bool:
        return True

    def supports_target_verify_for_draft(self) -> bool:
        return True

    def has_draft_kv(self) -> bool:
        return False  # no slots of its own: see drafters/sglang_models

    def need_topk(self) -> bool:
        return False

    def carries_draft_hidden_states(self) -> bool:
        return False

    def get_platform_worker_cls(self):
        return None

    def create_future_map(
        self, device, req_to_token_pool, needs_cpu_seq_lens: bool = True, needs_confidence_relay: bool = False
    ) -> FutureMap:
        # The worker needs lengths on the host whatever attention backend runs: they say how large a tree's mask is,
        # and the budget's costs depend on them.
        return FutureMap(device, self, req_to_token_pool, True, needs_confidence_relay)

    def get_num_tokens_per_req_for_target_verify(self, num_draft_tokens: int, is_draft_worker: bool) -> int:
        """N tree nodes for the target, the rows of its forward for the drafter."""
        if not is_draft_worker:
            return num_draft_tokens
        from .served_head import drafted_depth, served_head

        return served_head().rows(drafted_depth())

    def handle_server_args(self, server_args) -> None:
        from .resolve import resolve_server_args

        resolve_server_args(server_args)
