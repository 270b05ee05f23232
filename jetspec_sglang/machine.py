"""What a measured number was measured on."""

import os
import platform
from importlib.metadata import version
from pathlib import Path


def describe() -> dict[str, str | int]:
    """Processor, cores and versions, for the head of a result file."""
    import torch

    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0
    return {
        "processor": _processor(),
        "cores": cores,
        **gpu,
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "sglang", "transformers", "jetspec-sglang")},
    }


def _processor() -> str:
    """The model name that Linux gives, with its instruction sets for low precision."""
    try:
        facts = dict(
            line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().splitlines() if ":" in line
        )
    except OSError:
        return platform.processor()
    facts = {key.strip(): value.strip() for key, value in facts.items()}
    flags = {"avx512f", "avx512_bf16", "amx_bf16"} & set(facts.get("flags", "").split())
    return " ".join([facts.get("model name", platform.processor()), *sorted(flags)])
