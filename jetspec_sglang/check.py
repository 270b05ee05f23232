"""``jetspec check``: is this environment able to run JETSPEC, and does this head fit that target?

Each check is a function that returns what it found, or raises; :data:`CHECKS` lists them in order.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from . import upstream
from .flags import ALGORITHM

PYTHON = (3, 11)


class CheckFailed(Exception):
    """What is wrong, and what to do."""


@dataclass(frozen=True)
class Result:
    """One line of the report."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class Subject:
    """What the user wants checked beside the environment."""

    head: str | None = None
    target: str | None = None


def python_version(_: Subject) -> str:
    found = platform.python_version()
    if sys.version_info < PYTHON:
        raise CheckFailed(f"Python {found} is too old; use {'.'.join(map(str, PYTHON))} or newer.")
    return f"{found} ({sys.executable})"


def sglang_version(_: Subject) -> str:
    upstream.require_version()
    return upstream.SGLANG_VERSION


def contract(_: Subject) -> str:
    upstream.require()
    return f"{len(upstream.CONTRACT)} symbols of SGLang are as expected"


def torch_version(_: Subject) -> str:
    import torch

    cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA in this build"
    return f"{torch.__version__}, {cuda}"


def platform_chosen(_: Subject) -> str:
    """The machine that a server started now would run on."""
    from .cpu import activate

    # A wrong setting of the CPU platform ends the process, as SGLang would swallow an exception.
    try:
        on_cpu = activate() is not None
    except SystemExit as stop:
        raise CheckFailed(str(stop)) from None
    if on_cpu:
        return f"CPU, {os.cpu_count()} cores"
    import torch

    if not torch.cuda.is_available():
        raise CheckFailed(
            "no CUDA device is usable and the CPU platform is off; set JETSPEC_CPU=1 to use the CPU."
        )
    return f"CUDA, {torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"


def plugin_enabled(_: Subject) -> str:
    """SGLang finds the plugin by its entry point, and two variables can hide it."""
    if not any(point.name == "jetspec" for point in entry_points(group="sglang.srt.plugins")):
        raise CheckFailed("the entry point is missing; reinstall this project with `pip install`.")
    allowed = [name.strip() for name in os.environ.get("SGLANG_PLUGINS", "").split(",") if name.strip()]
    if allowed and "jetspec" not in allowed:
        raise CheckFailed(
            f"SGLANG_PLUGINS={','.join(allowed)} leaves it out; add jetspec to it, or unset it."
        )
    chosen = os.environ.get("SGLANG_PLATFORM")
    if chosen and chosen != "jetspec_cpu":
        raise CheckFailed(
            f"SGLANG_PLATFORM={chosen} makes SGLang skip the plugins of other platforms' packages; unset it."
        )
    return "entry point jetspec, not excluded by SGLANG_PLUGINS or SGLANG_PLATFORM"


def plugin_loads(_: Subject) -> str:
    """SGLang logs and swallows what goes wrong in a plugin, so its traces are looked for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SGLang's models complain about the machine when they are imported
        from sglang.srt.plugins import load_plugins
        from sglang.srt.plugins.hook_registry import HookRegistry
        from sglang.srt.speculative.spec_registry import get_spec

        load_plugins()
    from .plugin import failure

    if (error := failure()) is not None:
        raise CheckFailed(f"registration failed: {error}")
    if get_spec(ALGORITHM) is None:
        raise CheckFailed(f"{ALGORITHM} is not registered; look for the plugin's error in the log above.")
    hooks = set(HookRegistry._hooks)
    if unapplied := hooks - HookRegistry._patched:
        raise CheckFailed(f"hooks could not be applied to {', '.join(sorted(unapplied))}; see the log above.")
    return f"{ALGORITHM} is registered, {len(hooks)} hooks are applied"


def attention_backend(_: Subject) -> str:
    from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES

    from .cpu import activate
    from .refusals import CPU_BACKEND, CUDA_BACKENDS

    if activate() is not None:
        from sglang.srt.platforms import current_platform

        current_platform.get_device()  # resolves the platform, which offers the backend
        if CPU_BACKEND not in ATTENTION_BACKEND_CHOICES:
            raise CheckFailed(f"{CPU_BACKEND} is not offered to SGLang; set JETSPEC_CPU=1.")
        return CPU_BACKEND
    usable = [name for name in CUDA_BACKENDS if find_spec(name) is not None]
    if not usable:
        raise CheckFailed(f"none of {', '.join(CUDA_BACKENDS)} is installed; reinstall sglang.")
    return ", ".join(usable)


def head_readable(subject: Subject) -> str:
    """The head's config and the names and shapes of its tensors."""
    from .config import resolve_config
    from .drafters import checkpoint

    head = checkpoint.read_head_config(subject.head)
    tensors = checkpoint.load_head_tensors(subject.head)
    folder = str(checkpoint.locate(subject.head))
    config = resolve_config(_View(folder), head)
    size = sum(tensor.numel() for tensor in tensors.values())
    taps = "low, middle and high" if head.target_layer_ids is None else list(head.target_layer_ids)
    return (
        f"{config.drafter}{_addition(head)}, {size / 1e6:.1f} M parameters, block {head.block_size}, taps {taps}; "
        f"tree of {config.budget} nodes, depth {config.depth}, width {config.width}"
    )


def _addition(head: Any) -> str:
    """What a head has beside its layers."""
    corrector = getattr(head, "corrector", None)
    return "" if corrector is None else f" with a path corrector ({corrector.kind})"


@dataclass(frozen=True)
class _View:
    """Server args in which only the head is given."""

    speculative_draft_model_path: str


def target_usable(subject: Subject) -> str:
    """The target's class can hand out features."""
    from .refusals.launch import CAPTURE_METHOD, can_capture

    architecture = _target_config(subject).architectures[0]
    if not can_capture(architecture):
        raise CheckFailed(f"{architecture} has no {CAPTURE_METHOD} in SGLang; use another target.")
    return architecture


def head_fits(subject: Subject) -> str:
    from .drafters.checkpoint import check_fits_target, read_head_config
    from .refusals.launch import capture_problem

    head, target = read_head_config(subject.head), _target_config(subject).get_text_config()
    check_fits_target(head, target)
    if text := capture_problem(head.taps(target.num_hidden_layers), target.num_hidden_layers):
        raise CheckFailed(f"{text}; use a head made for this target.")
    return "hidden size, vocabulary and layers agree"


def _target_config(subject: Subject) -> Any:
    from transformers import AutoConfig

    from .builtin.target import BuiltinTargetError, target_place

    assert subject.target is not None  # its checks run only where one is given
    try:
        return AutoConfig.from_pretrained(target_place(subject.target))
    except BuiltinTargetError as error:
        raise CheckFailed(str(error)) from error
    except (OSError, ValueError) as error:
        raise CheckFailed(
            f"{subject.target} can't be read; give --target a model folder ({error})."
        ) from error


CHECKS: tuple[tuple[str, Callable[[Subject], str]], ...] = (
    ("python", python_version),
    ("sglang", sglang_version),
    ("contract", contract),
    ("torch", torch_version),
    ("platform", platform_chosen),
    ("plugin enabled", plugin_enabled),
    ("plugin loads", plugin_loads),
    ("attention backend", attention_backend),
)
HEAD_CHECKS = (("head", head_readable),)
TARGET_CHECKS = (("target", target_usable),)
FIT_CHECKS = (("head fits target", head_fits),)


def results(subject: Subject) -> Iterator[Result]:
    """Run the checks one after another; one that fails doesn't stop the others."""
    checks = [*CHECKS]
    checks += HEAD_CHECKS if subject.head else ()
    checks += TARGET_CHECKS if subject.target else ()
    checks += FIT_CHECKS if subject.head and subject.target else ()
    for name, run in checks:
        try:
            yield Result(name, True, run(subject))
        except (CheckFailed, upstream.UpstreamError, ValueError) as error:
            yield Result(name, False, str(error))
        except (
            Exception,
            SystemExit,
        ) as error:  # whatever is broken here is a finding, not the end of the report
            yield Result(name, False, f"{type(error).__name__}: {error}")


def check(
    head: Annotated[
        str | None, typer.Option(help="Draft head to read: folder, hub repository or builtin:NAME.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Target that the head must fit: folder, hub repository or builtin.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the results there, too.")] = None,
) -> None:
    """Check environment, SGLang and, if given, a head and its target. Exit status 1 if a line fails."""
    from rich.console import Console

    console = Console()
    found: list[Result] = []
    with console.status("checking …"):
        for result in results(Subject(head, target)):
            found.append(result)
            mark = "[green]pass[/]" if result.passed else "[red]FAIL[/]"
            console.print(f"{mark}  {result.name:<18}", end="")
            console.print(result.detail, markup=False, highlight=False)
    passed = all(result.passed for result in found)
    if json_file is not None:
        json_file.write_text(
            json.dumps({"passed": passed, "checks": [asdict(r) for r in found]}, indent=2) + "\n"
        )
    raise typer.Exit(0 if passed else 1)


if __name__ == "__main__":
    typer.run(check)
