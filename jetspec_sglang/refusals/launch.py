"""A server about to start, as the refusals see it: its arguments, its target and its head, each read once."""

from __future__ import annotations

import ast
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from jetspec_sglang.builtin.head import BuiltinHeadError, named_builtin
from jetspec_sglang.config import SUFFIX, asked_drafter
from jetspec_sglang.sources import module_path

CAPTURE_METHOD = "set_dflash_layers_to_capture"


class Launch:
    """Lazy facts about a start. ``args`` is any view of SGLang's server args."""

    def __init__(self, args: Any):
        self.args = args

    def get(self, field: str) -> Any:
        """The value in effect so far, SGLang's own defaults included."""
        return getattr(self.args, field, None)

    def asked(self, field: str) -> Any:
        """What the user typed, None if nothing. SGLang keeps that apart from what it has settled since."""
        typed = getattr(self.args, "_raw_input", None)
        return self.get(field) if typed is None else typed.get(field)

    @property
    def decode_graph_asked(self) -> str | None:
        """The graph backend the user wants for decoding, by either of the two flags."""
        config = self.asked("cuda_graph_config")
        decode = config.get("decode") if isinstance(config, dict) else getattr(config, "decode", None)
        named = decode.get("backend") if isinstance(decode, dict) else getattr(decode, "backend", None)
        return named or self.asked("cuda_graph_backend_decode")

    @cached_property
    def device(self) -> str:
        return str(self.get("device") or "cuda").split(":")[0]

    @cached_property
    def attention_backends(self) -> set[str]:
        """Backends in use for prefill, decode and drafting."""
        base = self.get("attention_backend")
        named = (
            self.get("prefill_attention_backend") or base,
            self.get("decode_attention_backend") or base,
            self.get("speculative_draft_attention_backend"),
        )
        return {name for name in named if name}

    @property
    def draft_attention_backend(self) -> str | None:
        """What the drafter runs on: as the target's verify, unless the user says otherwise."""
        return (
            self.get("speculative_draft_attention_backend")
            or self.get("decode_attention_backend")
            or self.get("attention_backend")
        )

    @property
    def draft_kv_dtype(self) -> str:
        return str(self.get("speculative_draft_kv_cache_dtype") or self.get("kv_cache_dtype") or "auto")

    @property
    def unsupported_backends(self) -> str:
        """The attention backends that can't mask a tree, as text."""
        from .engine import CPU_BACKEND, CUDA_BACKENDS

        known = {CPU_BACKEND} if self.device == "cpu" else set(CUDA_BACKENDS)
        return ", ".join(sorted(self.attention_backends - known))

    @cached_property
    def target(self) -> Any:
        """SGLang's ModelConfig of the target."""
        from sglang.srt.arg_groups.overrides import model_config_of

        return model_config_of(self.args)

    @cached_property
    def architecture(self) -> str:
        return self.target.hf_config.architectures[0]

    @cached_property
    def target_layer_types(self) -> set[str]:
        return set(getattr(self.target.hf_text_config, "layer_types", None) or ())

    @cached_property
    def is_recurrent(self) -> bool:
        from sglang.srt.configs.hybrid_arch import mambaish_config

        if self.target.attention_arch.name == "SSM" or mambaish_config(self.target) is not None:
            return True
        # Hybrid layouts that SGLang has no class for yet.
        return any("linear" in kind or "mamba" in kind for kind in self.target_layer_types)

    @cached_property
    def target_captures(self) -> bool:
        """Whether the target's class can hand out the features that the head reads."""
        return can_capture(self.architecture)

    @cached_property
    def headless(self) -> bool:
        """Whether the drafter that is asked for needs no head."""
        return asked_drafter(self.args) == SUFFIX

    @cached_property
    def head_path(self) -> str | None:
        return self.get("speculative_draft_model_path")

    @cached_property
    def head_folder(self) -> Path | None:
        """Local folder of the head, downloaded if its path names a hub repository; None if there is none."""
        if not self.head_path:
            return None
        from jetspec_sglang.drafters.checkpoint import CONFIG, HeadError, locate

        try:
            folder = locate(self.head_path)
        except HeadError:
            return None
        return folder if (folder / CONFIG).is_file() else None

    @cached_property
    def head_absent(self) -> str | None:
        """Why there is no folder of the head, None if there is one (or if no head is given)."""
        if not self.head_path or self.head_folder is not None:
            return None
        try:
            named_builtin(self.head_path)
        except BuiltinHeadError as error:
            return str(error)
        return (
            f"{self.head_path} is neither a folder with a head's config.json nor a hub repository within reach; "
            "give --speculative-draft-model-path one of them."
        )

    @cached_property
    def head_unreadable(self) -> str | None:
        """What is wrong with the head's own files, None if nothing is (or if there is no head)."""
        if self.head_folder is None:
            return None
        from jetspec_sglang.drafters import checkpoint

        try:
            checkpoint.check_head_files(self.head_folder)
        except checkpoint.HeadError as error:
            return str(error)
        return None

    @cached_property
    def drafts_in_levels(self) -> bool:
        """Whether the head runs once for each level of a tree, over rows behind those of the levels before."""
        if self.head_folder is None or self.head_unreadable:
            return False
        from jetspec_sglang.drafters import checkpoint

        try:
            return checkpoint.read_head_config(self.head_folder).drafter == "autoregressive"
        except checkpoint.HeadError:  # `head_problem` says why
            return False

    @cached_property
    def head_problem(self) -> str | None:
        """Why the head can't be used with this target, None if it can (or if there is no head to read)."""
        if self.head_folder is None:
            return None
        from jetspec_sglang.drafters import checkpoint

        try:
            head = checkpoint.read_head_config(self.head_folder)
            checkpoint.check_fits_target(head, self.target.hf_text_config)
        except checkpoint.HeadError as error:
            return str(error)
        layers = self.target.num_hidden_layers
        return capture_problem(head.taps(layers), layers)


def capture_problem(taps: tuple[int, ...], layers: int) -> str | None:
    """Why SGLang can't hand out these taps of a target of so many layers, None if it can."""
    if layers - 1 in taps:
        return f"the head reads the output of layer {layers - 1}, the target's last, which SGLang doesn't hand out"
    if list(taps) != sorted(set(taps)):
        return f"the head reads layers {', '.join(map(str, taps))}, but SGLang hands out each layer once and in order"
    return None


def can_capture(architecture: str) -> bool:
    """Whether SGLang's model class of that name has ``set_dflash_layers_to_capture``.

    Importing a model takes seconds that the launching process doesn't spend otherwise, so the class's source
    is read first; only a class that doesn't define the method itself is imported, as it may inherit it.
    """
    folder = module_path("sglang.srt.models")
    assert folder is not None  # the contract's check has found SGLang
    for file in sorted(folder.glob("*.py")):
        text = file.read_text(encoding="utf-8")
        if f"class {architecture}(" not in text:
            continue
        if _defines(text, architecture, CAPTURE_METHOD):
            return True
        module = import_module(f"sglang.srt.models.{file.stem}")
        return hasattr(getattr(module, architecture), CAPTURE_METHOD)
    # Not SGLang's own: perhaps registered by another plugin.
    from sglang.srt.models.registry import ModelRegistry

    return hasattr(ModelRegistry.models.get(architecture), CAPTURE_METHOD)


def _defines(source: str, class_name: str, method: str) -> bool:
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            return any(isinstance(part, ast.FunctionDef) and part.name == method for part in node.body)
    return False
