"""One-pass heads as SGLang serves them: one forward over `[anchor, MASK, …]`, one row of candidates a depth.

Causal parallel and diffusion heads differ in what a slot of the block sees, which the head's config says.

The head keeps a KV cache of its own over the committed text. Its slots are the target's slot ids, so a prefix
that SGLang's radix cache knows is known to the head too, and retraction or abort needs nothing from us.
"""

import torch
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
from sglang.srt.models.dflash import DFlashDraftModel
from sglang.srt.models.registry import ModelRegistry
from sglang.srt.speculative.draft_worker_common import build_draft_tp_worker
from torch import nn

from jetspec_sglang.kernels.top_k import top_k_entropy, top_k_logprobs
from jetspec_sglang.tree import DraftProposal

from ..checkpoint_block import ARCHITECTURE, block_is_causal
from ..contract import CommittedTokens, DrafterSpec
from ..head_config import HeadConfig
from .block_input import DraftBlockInput


class BlockModel(DFlashDraftModel):
    """SGLang's DFlash module, told the truth about causality.

    Published JetSpec heads say `dflash_config.causal_head`, which SGLang does not read: it would run them
    bidirectionally, silently. The block is embedded by the target's own embedding, set after loading.
    """

    def __init__(self, config, quant_config=None, prefix: str = "") -> None:
        config.is_causal = block_is_causal(config.to_dict())
        config.layer_types = ["full_attention"] * config.num_hidden_layers
        super().__init__(config, quant_config, prefix)
        self._target_embedding: list[nn.Module] = []  # in a list: its parameters are not ours
        for layer in self.layers:
            # The fused table kernel is Triton; without it the module takes the plain operations.
            layer.self_attn.use_table_qk_norm_rope &= torch.cuda.is_available()

    def share_embedding(self, embedding: nn.Module) -> None:
        self._target_embedding = [embedding]

    def forward_embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self._target_embedding[0](input_ids)


class BlockDrafter:
    """Drafts for a batch of requests: `append_context` after each commit, `propose` once a round.

    The head's weights and KV pool live in an SGLang worker of their own (`self.worker`), which shares the
    target's slot allocator and request table.
    """

    def __init__(
        self,
        *,
        head: HeadConfig,
        width: int,
        depth: int,
        server_args,
        gpu_id: int,
        nccl_port: int,
        target_worker,
        attention_backend: str,
    ) -> None:
        ModelRegistry.models[ARCHITECTURE] = BlockModel
        target = target_worker.model_runner
        bundle = build_draft_tp_worker(
            server_args=server_args,
            gpu_id=gpu_id,
            nccl_port=nccl_port,
            target_model_config=target.model_config,
            algo_label="JETSPEC",
            attention_backend_override=attention_backend,
        )
        self.worker = bundle.draft_worker
        self.runner = bundle.draft_model_runner
        self.model = bundle.draft_model
        self.model.share_embedding(target.model.get_input_embeddings())
        self.lm_head = target.model.lm_head
        self.head = head
        self.width = width
        self.spec = DrafterSpec.of_head(head, depth, target.model_config.num_hidden_layers)
        self.context_limit = target.model_config.context_len
        self._layers = [layer.self_attn for layer in self.model.layers]

    def slots(self, depth: int) -> int:
        """A causal block's first rows don't depend on its length, so rows that no tree can use are not run."""
        return self.head.slots(depth)

    @torch.inference_mode()
    def append_context(self, committed: CommittedTokens) -> None:
        """Write the head's context K/V of committed tokens."""
        context = self.model.project_target_hidden(committed.taps)
        positions = committed.positions.clamp(max=self.context_limit - 1)
        where = KVWriteLoc(committed.slots, physical=True)
        pool = self.runner.token_to_kv_pool
        for attention in self._layers:
            k, v = attention.kv_proj_only(context)
            k = attention.apply_k_rope(positions, attention.apply_k_norm(k))
            shape = (-1, attention.num_kv_heads, attention.head_dim)
            pool.set_kv_buffer(attention.attn, where, k.view(shape), v.view(shape))

    @torch.inference_mode()
    def propose(
        self,
        anchors: torch.Tensor,
        slots: torch.Tensor,
        batch,
        *,
        entropy: bool = False,
        candidates: int | None = None,
    ) -> DraftProposal:
        """Candidates for the first L - 1 depths below `anchors` [B] int64.

        slots: [B, L] int64, as many as `slots` says, reserved ones behind the committed prefix; the block's K/V
        is scratch there, overwritten by the next `append_context`. `batch` is left in draft shape: its caller
        owns it.
        """
        length = slots.shape[1]
        block = anchors[:, None].repeat(1, length)
        block[:, 1:] = self.head.mask_token_id
        steps = torch.arange(length, device=anchors.device)
        positions = (batch.seq_lens[:, None] + steps).clamp(max=self.context_limit - 1)

        batch.forward_mode = ForwardMode.TARGET_VERIFY
        batch.spec_info = DraftBlockInput.of(block, positions)
        batch.input_ids = block.flatten()
        batch.out_cache_loc = slots.flatten()
        forward_batch = ForwardBatch.init_new(
            batch,
            self.runner,
            capture_hidden_mode=batch.spec_info.capture_hidden_mode,
            return_hidden_states_before_norm=False,
        )
        hidden = self.runner.forward(forward_batch).logits_output.hidden_states
        rows = hidden.view(len(anchors), length, -1)[:, 1:].flatten(0, 1)
        logits = self.lm_head.quant_method.apply(self.lm_head, rows)[:, : self.head.vocab_size]
        shape, kept = (len(anchors), length - 1), min(candidates or self.width, self.head.vocab_size)
        if entropy:
            logprobs, tokens, row_entropy = top_k_entropy(logits, kept)
            row_entropy = row_entropy.view(shape)
        else:
            logprobs, tokens = top_k_logprobs(logits, kept)
            row_entropy = None
        return DraftProposal(tokens.view(*shape, -1), logprobs.view(*shape, -1), row_entropy)
