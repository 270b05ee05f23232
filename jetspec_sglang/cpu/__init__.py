"""The CPU as an SGLang platform: chosen by itself where no accelerator is present.

SGLang calls `activate` through the entry point `jetspec_cpu` of the group `sglang.srt.platforms`, in
every process and very early. This module therefore imports nothing heavy.

Environment variable `JETSPEC_CPU`: `1` forces the CPU (and hides the accelerators from this process and
its children), `0` forbids it, unset or empty lets the machine decide. When in doubt the platform stays off.
"""

from __future__ import annotations

import os
from importlib.metadata import entry_points

from jetspec_sglang.cpu.accelerators import find_accelerator, hide_accelerators
from jetspec_sglang.cpu.spin import spin_little

PLATFORM_NAME = "jetspec_cpu"
PLATFORM_CLASS = "jetspec_sglang.cpu.platform.JetSpecCpuPlatform"


def activate() -> str | None:
    """Return the path of the platform class, or None where this platform must stay off.

    A wrong setting ends the process with one sentence: SGLang logs and swallows ordinary exceptions of
    a platform plugin and would go on to fail with an unrelated message.
    """
    try:
        wanted = wants_cpu(os.environ)
    except ValueError as error:
        raise SystemExit(f"jetspec: {error}") from None
    if wanted is None:
        wanted = find_accelerator() is None and not other_platform_plugins()
    elif wanted:
        hide_accelerators(os.environ)
    if not wanted:
        return None
    spin_little()  # the processes that SGLang starts
    return PLATFORM_CLASS


def wants_cpu(environ) -> bool | None:
    """What the environment asks for: True (force), False (forbid) or None (let the machine decide)."""
    value = environ.get("JETSPEC_CPU", "").strip()
    if value not in ("", "0", "1"):
        raise ValueError(f"JETSPEC_CPU must be 1 (force the CPU) or 0 (forbid it), not {value!r}.")
    sglang_cpu_engine = environ.get("SGLANG_USE_CPU_ENGINE", "0") == "1"
    if value == "1" and sglang_cpu_engine:
        raise ValueError("JETSPEC_CPU=1 and SGLANG_USE_CPU_ENGINE=1 name two different CPU engines; set one.")
    if value:
        return value == "1"
    if sglang_cpu_engine:
        return False
    # Naming a platform is as explicit as forcing it; another name never reaches this function.
    return True if environ.get("SGLANG_PLATFORM") == PLATFORM_NAME else None


def other_platform_plugins() -> list[str]:
    """Names of the platform plugins of other distributions: two active ones would stop SGLang."""
    return sorted({ep.name for ep in entry_points(group="sglang.srt.platforms")} - {PLATFORM_NAME})


def install_hooks() -> None:
    """Register what speculative decoding needs on this platform; nothing on any other one."""
    from jetspec_sglang.cpu.hooks import install

    install()
