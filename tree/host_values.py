"""Values that the host knows, on an accelerator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def host_values(values: Sequence[Any] | Tensor, device: torch.device) -> Tensor:
    """`values` as a tensor on `device`.

    The copy is queued. `torch.tensor(values, device=...)` would first wait for all that is queued before it, in the
    middle of a round a whole forward.
    """
    return torch.as_tensor(values).to(device, non_blocking=True)
