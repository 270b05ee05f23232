"""Finds the head before SGLang looks for it.

SGLang opens the head's config as the first step of its speculative settings, long before it asks a plugin's
algorithm, and fails there with a message about hub repositories. This step comes before that one. It also
turns ``owner/repo::subfolder``, as heads are published, into the local folder that SGLang understands.
"""

from __future__ import annotations

from typing import Any

from .flags import ALGORITHM
from .refusals import HEAD_PLACE, Launch, refuse_unsupported

STEP = "handle_speculative_decoding"


def install() -> None:
    """Put `settle_head_place` around SGLang's step."""
    from sglang.srt.arg_groups.resolution_hooks import register_resolution_hook

    register_resolution_hook(STEP)(settle_head_place)


def settle_head_place(server_args: Any, previous: Any) -> None:
    """Resolution hook: refuse a missing head by name, declare the folder of one that exists.

    Raises:
        UnsupportedError: no head is given, or it can't be found.
    """
    from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view

    view = resolving_view(server_args)
    if (view.speculative_algorithm or "").upper() == ALGORITHM:
        refuse_unsupported(view, HEAD_PLACE)
        if (folder := Launch(view).head_folder) is not None:  # else it drafts without a head
            declare_resolution(server_args, "jetspec.head_place", speculative_draft_model_path=str(folder))
    previous(server_args)
