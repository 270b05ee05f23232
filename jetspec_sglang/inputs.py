"""What a JETSPEC batch carries between rounds and into the verify forward."""

from dataclasses import dataclass

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.eagle_info import EagleVerifyInput
from sglang.srt.speculative.eagle_utils import eagle_prepare_for_decode
from sglang.srt.speculative.spec_info import SpecInput, SpecInputType

from jetspec_sglang.tree import TokenTree, ancestor_mask, full_mask, positions


class RoundState(SpecInput):
    """State of a batch between rounds: the anchors, nothing else.

    Everything else about a request lives in KV slots that SGLang owns, so a request that is retracted,
    aborted or moved to another batch leaves nothing behind.

    `bonus_tokens` [B] int64 is SGLang's name for the anchors: committed tokens without KV. Under the overlap
    schedule they are relayed by request index, and only `future_indices` [B] is valid here.
    """

    # Read by SGLang's relay; a block drafter has none of them.
    topk_p = None
    topk_index = None
    hidden_states = None

    def __init__(self, bonus_tokens: torch.Tensor) -> None:
        super().__init__(SpecInputType.DFLASH_DRAFT)
        self.bonus_tokens = bonus_tokens
        self.future_indices: torch.Tensor | None = None
        self.num_tokens_per_req = 1
        self.num_tokens_for_logprob_per_req = 1

    def prepare_for_decode(self, batch) -> None:
        """Reserve the slots of the coming rounds (SGLang's own accounting, penalties included)."""
        eagle_prepare_for_decode(batch)

    def filter_batch(self, new_indices: torch.Tensor, new_indices_cpu: list[int] | None = None) -> None:
        if self.future_indices is not None:
            self.future_indices = self.future_indices[new_indices]
        else:
            self.bonus_tokens = self.bonus_tokens[new_indices]

    def merge_batch(self, other: "RoundState") -> None:
        if self.future_indices is not None:
            assert other.future_indices is not None  # the scheduler relays all batches or none
            self.future_indices = torch.cat([self.future_indices, other.future_indices])
        else:
            self.bonus_tokens = torch.cat([self.bonus_tokens, other.bonus_tokens])


@dataclass
class TreeVerifyInput(EagleVerifyInput):
    """The verify forward's input: N tree nodes a request and who sees whom.

    `tree_mask` [batch, N, N] bool says which nodes a node sees; `custom_mask` is the same with the prefix in
    front, flattened as FlashInfer and Triton take it, and absent on the CPU, whose backend needs no prefix mask.
    """

    tree_mask: torch.Tensor | None = None

    @classmethod
    def of(
        cls, tree: TokenTree, batch, limit: int, capture: CaptureHiddenMode = CaptureHiddenMode.FULL
    ) -> "TreeVerifyInput":
        """`limit`: positions are clamped below it. `capture`: whether the nodes' features are wanted.

        Near the context's end a tree may reach past it. Such nodes are never emitted, but the rotary table
        has no row for them.
        """
        mask = ancestor_mask(tree)
        flat_mask = None
        if mask.device.type != "cpu":
            flat_mask = full_mask(mask, batch.seq_lens, batch.seq_lens_sum)
        return cls(
            draft_token=tree.tokens.clamp(min=0).flatten(),  # padding holds -1, which no embedding has
            custom_mask=flat_mask,
            positions=positions(tree, batch.seq_lens).clamp(max=limit - 1).flatten(),
            retrieve_index=None,
            retrieve_next_token=None,
            retrieve_next_sibling=None,
            retrieve_cum_len=None,
            spec_steps=tree.tokens.shape[1] - 1,
            topk=-1,  # irregular: no fixed branching
            draft_token_num=tree.tokens.shape[1],
            capture_hidden_mode=capture,
            seq_lens_sum=batch.seq_lens_sum,
            seq_lens_cpu=batch.seq_lens_cpu,
            tree_mask=mask,
        )
