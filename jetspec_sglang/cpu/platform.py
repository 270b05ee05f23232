"""The out-of-tree platform class that SGLang asks for its CPU decisions."""

from __future__ import annotations

from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform

from jetspec_sglang.cpu.defaults import ATTENTION_BACKEND, apply_defaults, offer_attention_backend


class JetSpecCpuPlatform(CpuDeviceMixin, SRTPlatform):
    """CPU without compiled kernels: torch everywhere, no Triton, no graph capture.

    It must be out-of-tree (`OOT`): SGLang's own CPU identity would import the CPU build of `sgl_kernel`,
    which is on no package index.
    """

    _enum = PlatformEnum.OOT
    capabilities = PlatformCapabilities()

    def __init__(self) -> None:
        # Runs before any command line is parsed, so `--attention-backend jetspec_cpu` is a valid choice.
        offer_attention_backend()

    def get_device(self, device_id: int | None = 0) -> str:
        # SGLang stores this as `ServerArgs.device`, which is a string.
        return "cpu"

    def apply_server_args_defaults(self, server_args) -> None:
        apply_defaults(server_args)

    def init_backend(self) -> None:
        # SGLang calls this once in each process that runs a model, before it builds one.
        from jetspec_sglang.cpu import attention_backend, layer_ops

        attention_backend.register()
        layer_ops.register()

    def post_load_model(self, model) -> None:
        from jetspec_sglang.cpu.packed_linear import pack_linear_layers

        pack_linear_layers(model)

    def get_default_attention_backend(self) -> str:
        return ATTENTION_BACKEND

    def get_default_speculative_draft_attention_backend(self, algorithm: str) -> str:
        return ATTENTION_BACKEND

    def supports_speculative_draft_attention_backend(self, algorithm: str, backend: str) -> bool:
        return backend == ATTENTION_BACKEND

    def supports_speculative_algorithm(self, algorithm: str) -> bool:
        return True

    def get_kv_pool_cls(self, *, kind: str) -> type | None:
        if kind != "mha":
            return None
        from jetspec_sglang.cpu.kv_pool import CpuKVPool

        return CpuKVPool

    def get_compile_backend(self, mode: str | None = None) -> str:
        return "eager"
