"""The input of an autoregressive drafter's forward: one level of the trees."""

from dataclasses import dataclass

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.dflash_info import DFlashVerifyInput

from jetspec_sglang.tree import full_mask


@dataclass
class DraftLevelInput(DFlashVerifyInput):
    """F nodes a request, behind the committed tokens and the nodes drafted before.

    `hidden_states` [batch * F, H] are the nodes' features. `custom_mask` is flat, as FlashInfer and Triton take
    it; `tree_mask` is the same for the CPU attention backend, a mask [F, keys] for each request.
    """

    hidden_states: torch.Tensor | None = None
    tree_mask: list[torch.Tensor] | None = None

    @classmethod
    def of(
        cls,
        tokens: torch.Tensor,
        features: torch.Tensor,
        positions: torch.Tensor,
        visible: torch.Tensor,
        prefix_lens: torch.Tensor,
        prefix_lens_sum: int | None,
    ) -> "DraftLevelInput":
        """tokens, positions: [B, F] int64; features: [B, F, H]; prefix_lens: [B] committed tokens.

        visible: [B, F, M] bool, the M drafted nodes so far, these F included, that a node sees. Of the prefix all
        is visible but the first entry: the row of a text's first token doesn't exist.
        """
        flat = full_mask(visible, prefix_lens, prefix_lens_sum)
        nodes, keys = visible.shape[1:]
        row_lens = prefix_lens.to(torch.int64) + keys
        starts = row_lens.repeat_interleave(nodes, output_size=len(row_lens) * nodes)
        flat[starts.cumsum(0) - starts] = False
        split = on_cpu(flat)
        return cls(
            draft_token=tokens.flatten(),
            positions=positions.flatten(),
            draft_token_num=nodes,
            custom_mask=None if split else flat,
            capture_hidden_mode=CaptureHiddenMode.NULL,
            hidden_states=features.flatten(0, 1),
            tree_mask=_by_request(flat, nodes, row_lens) if split else None,
        )


def on_cpu(mask: torch.Tensor) -> bool:
    return mask.device.type == "cpu"


def _by_request(flat: torch.Tensor, nodes: int, row_lens: torch.Tensor) -> list[torch.Tensor]:
    return [part.view(nodes, -1) for part in flat.split((nodes * row_lens).tolist())]
