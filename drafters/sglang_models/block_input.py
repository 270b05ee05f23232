"""The input of a block drafter's forward."""

from dataclasses import dataclass

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.dflash_info import DFlashVerifyInput


@dataclass
class DraftBlockInput(DFlashVerifyInput):
    """The draft forward's input: B slots a request, which see each other as the layers' attention type says."""

    tree_mask = None  # what the CPU attention backend reads; None leaves it to the layers

    @classmethod
    def of(cls, block_ids: torch.Tensor, positions: torch.Tensor) -> "DraftBlockInput":
        """`block_ids`, `positions`: [batch, B] int64."""
        return cls(
            draft_token=block_ids.flatten(),
            positions=positions.flatten(),
            draft_token_num=block_ids.shape[1],
            capture_hidden_mode=CaptureHiddenMode.NULL,
        )
