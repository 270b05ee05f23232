"""SGLang finds the platform by itself and resolves a plain configuration to something that can serve."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 64,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "hidden_act": "silu", "dtype": "float32",
}  # fmt: skip

PROBE = """
import sys
import sglang.launch_server  # `kernels` of Hugging Face must still be found from here
import kernels
assert getattr(kernels, "__file__", None), "the folder kernels/ hides Hugging Face's package"
from sglang.srt.platforms import current_platform
from sglang.srt.server_args import prepare_server_args
from sglang.srt.arg_groups.overrides import resolving_view
assert type(current_platform).__name__ == "JetSpecCpuPlatform", current_platform

def resolve(*extra):
    common = ["--model-path", sys.argv[1], "--load-format", "dummy", "--skip-tokenizer-init"]
    args = prepare_server_args([*common, *extra])
    args.resolve_once()
    return resolving_view(args)

plain = resolve()
assert (plain.device, plain.attention_backend, plain.sampling_backend) == ("cpu", "jetspec_cpu", "pytorch")
assert 1024 <= plain.max_total_tokens <= 65536
assert plain.max_running_requests == 32
flags = "--attention-backend torch_native --max-total-tokens 300 --max-running-requests 3"
given = resolve(*flags.split())
assert given.attention_backend == "torch_native"
assert (given.max_total_tokens, given.max_running_requests) == (300, 3)
assert resolve("--mem-fraction-static", "0.1").max_total_tokens is None

from jetspec_sglang import cpu
cpu.install_hooks(); cpu.install_hooks()
from sglang.srt.plugins.hook_registry import HookRegistry
HookRegistry.apply_hooks()
from sglang.srt.mem_cache import allocation
from jetspec_sglang.cpu import hooks
assert allocation.assign_req_to_token_pool_func.__wrapped__ is not None
assert len(HookRegistry._hooks[hooks.ASSIGN_SLOTS]) == 1
"""


def test_plain_configuration_from_the_repository_root(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    subprocess.run([sys.executable, "-c", PROBE, str(tmp_path)], check=True, cwd=ROOT, timeout=120)


def test_the_kernels_folder_is_no_package():
    assert not (ROOT / "kernels" / "__init__.py").exists()
