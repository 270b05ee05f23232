"""The input of a path drafter's forward: rows for one level of the trees."""

from dataclasses import dataclass

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.dflash_info import DFlashVerifyInput

from jetspec_sglang.tree import full_mask


@dataclass
class DraftLevelInput(DFlashVerifyInput):
    """R rows a request, behind the committed tokens and the rows drafted before.

    `hidden_states` [batch * F, H] is what the level's F nodes know of the nodes above. `custom_mask` is flat, as
    FlashInfer and Triton take it; `tree_mask` is the same for the CPU attention backend, a mask [R, keys] for each
    request.
    """

    hidden_states: torch.Tensor | None = None
    tree_mask: list[torch.Tensor] | None = None

    @classmethod
    def of(
        cls,
        tokens: torch.Tensor,
        states: torch.Tensor,
        positions: torch.Tensor,
        visible: torch.Tensor,
        prefix_lens: torch.Tensor,
        prefix_lens_sum: int | None,
        *,
        first_is_seen: bool,
    ) -> "DraftLevelInput":
        """tokens, positions: [B, R] int64; states: [B, F, H]; prefix_lens: [B] committed tokens.

        visible: [B, R, M] bool, the M rows drafted so far, these R included, that a row sees. Of the prefix all is
        visible, with or without the first token's entry.
        """
        flat = full_mask(visible, prefix_lens, prefix_lens_sum)
        rows, keys = visible.shape[1:]
        row_lens = prefix_lens.to(torch.int64) + keys
        if not first_is_seen:
            starts = row_lens.repeat_interleave(rows, output_size=len(row_lens) * rows)
            flat[starts.cumsum(0) - starts] = False
        split = on_cpu(flat)
        return cls(
            draft_token=tokens.flatten(),
            positions=positions.flatten(),
            draft_token_num=rows,
            custom_mask=None if split else flat,
            capture_hidden_mode=CaptureHiddenMode.NULL,
            hidden_states=states.flatten(0, 1),
            tree_mask=_by_request(flat, rows, row_lens) if split else None,
        )


def on_cpu(mask: torch.Tensor) -> bool:
    return mask.device.type == "cpu"


def _by_request(flat: torch.Tensor, rows: int, row_lens: torch.Tensor) -> list[torch.Tensor]:
    return [part.view(rows, -1) for part in flat.split((rows * row_lens).tolist())]
