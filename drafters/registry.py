"""Drafters by name: one visible table of lazily imported factories, open to other packages.

A package adds its drafter under the entry-point group ``jetspec.drafters``:

    [project.entry-points."jetspec.drafters"]
    my_drafter = "my_package.module:MyDrafter"
"""

from __future__ import annotations

from jetspec_sglang.tree.registry import Registry

ENTRY_POINT_GROUP = "jetspec.drafters"


DRAFTERS = Registry(
    "drafter",
    {
        "causal_parallel": "jetspec_sglang.drafters.sglang_models.block:BlockDrafter",
        "diffusion": "jetspec_sglang.drafters.sglang_models.block:BlockDrafter",
        "autoregressive": "jetspec_sglang.drafters.sglang_models.autoregressive:AutoregressiveDrafter",
        "spec_block": "jetspec_sglang.drafters.sglang_models.spec_block:SpecBlockDrafter",
        "suffix": "jetspec_sglang.drafters.suffix.served:SuffixDrafter",
    },
    entry_point_group=ENTRY_POINT_GROUP,
)
