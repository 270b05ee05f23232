"""Heads of several decoder layers over `[token, MASK, …]` as SGLang serves them: what block and spec-block heads share.

The head keeps a KV cache of its own over the committed text. Its slots are the target's slot ids, so a prefix
that SGLang's radix cache knows is known to the head too, and retraction or abort needs nothing from us.
"""

from typing import Any, ClassVar

import torch
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.models.dflash import DFlashDraftModel
from sglang.srt.models.registry import ModelRegistry
from torch import nn

from jetspec_sglang.kernels.top_k import top_k_entropy, top_k_logprobs
from jetspec_sglang.tree import DraftProposal

from ..contract import CommittedTokens, DrafterSpec
from ..head_config import HeadConfig, SpecBlockConfig
from .common import draft_worker


class LayeredModel(DFlashDraftModel):
    """SGLang's DFlash module. Tokens are embedded by the target's own embedding, set after loading."""

    def __init__(self, config, quant_config=None, prefix: str = "") -> None:
        config.layer_types = ["full_attention"] * config.num_hidden_layers
        super().__init__(config, quant_config, prefix)
        self._target_embedding: list[nn.Module] = []  # in a list: its parameters are not ours
        for layer in self.layers:
            # The fused table kernel is Triton, for powers of two; without it the module takes the plain operations.
            size = layer.self_attn.head_dim
            layer.self_attn.use_table_qk_norm_rope &= torch.cuda.is_available() and size & (size - 1) == 0

    def share(self, embedding: nn.Module, lm_head: Any) -> None:
        """Take the target's modules; the lm_head is for what a head has beside its layers."""
        self._target_embedding = [embedding]

    def forward_embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self._target_embedding[0](input_ids)


class LayeredDrafter:
    """The worker of a `LayeredModel` (`self.worker`), its context, and the tokens that its outputs speak for."""

    models: ClassVar[dict[str, type[LayeredModel]]]  # by the architecture that a head's config names

    def __init__(
        self,
        *,
        head: HeadConfig | SpecBlockConfig,
        width: int,
        depth: int,
        server_args,
        gpu_id: int,
        nccl_port: int,
        target_worker,
        attention_backend: str,
    ) -> None:
        ModelRegistry.models |= self.models
        target = target_worker.model_runner
        bundle = draft_worker(
            server_args=server_args,
            gpu_id=gpu_id,
            nccl_port=nccl_port,
            target_worker=target_worker,
            attention_backend=attention_backend,
        )
        self.worker = bundle.draft_worker
        self.runner = bundle.draft_model_runner
        self.model = bundle.draft_model
        self.lm_head = target.model.lm_head
        self.model.share(target.model.get_input_embeddings(), self.lm_head)
        self.head = head
        self.width = width
        self.spec = DrafterSpec.of_head(head, depth, target.model_config.num_hidden_layers)
        self.context_limit = target.model_config.context_len
        self._layers = [layer.self_attn for layer in self.model.layers]

    def slots(self, depth: int) -> int:
        return self.head.slots(depth)

    @torch.inference_mode()
    def append_context(self, committed: CommittedTokens) -> None:
        """Write the head's context K/V of committed tokens."""
        context = self.model.project_target_hidden(committed.taps)
        positions = self.positions(committed.positions)
        where = KVWriteLoc(committed.slots, physical=True)
        pool = self.runner.token_to_kv_pool
        for attention in self._layers:
            k, v = attention.kv_proj_only(context)
            k = attention.apply_k_rope(positions, attention.apply_k_norm(k))
            shape = (-1, attention.num_kv_heads, attention.head_dim)
            pool.set_kv_buffer(attention.attn, where, k.view(shape), v.view(shape))

    def positions(self, absolute: torch.Tensor) -> torch.Tensor:
        """Of tokens, as far as the target's context goes."""
        return absolute.clamp(max=self.context_limit - 1)

    def candidates(self, normed: torch.Tensor, kept: int, entropy: bool) -> DraftProposal:
        """The `kept` likeliest tokens behind each of the outputs [B, D, H], those behind the final norm."""
        logits = self.lm_head.quant_method.apply(self.lm_head, normed.flatten(0, 1))
        logits, shape = logits[:, : self.head.vocab_size], normed.shape[:2]
        if entropy:
            logprobs, tokens, row_entropy = top_k_entropy(logits, kept)
            row_entropy = row_entropy.view(shape)
        else:
            logprobs, tokens = top_k_logprobs(logits, kept)
            row_entropy = None
        return DraftProposal(tokens.view(*shape, -1), logprobs.view(*shape, -1), row_entropy)
