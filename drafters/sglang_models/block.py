"""One-pass heads as SGLang serves them: one forward over `[anchor, MASK, …]`, one row of candidates a depth.

Causal parallel and diffusion heads differ in what a slot of the block sees, which the head's config says. The rows
are shared by all nodes of their depth, unless the head has a path corrector, which makes a row for each node of
them.

The head keeps a KV cache of its own over the committed text. Its slots are the target's slot ids, so a prefix
that SGLang's radix cache knows is known to the head too, and retraction or abort needs nothing from us.
"""

from collections.abc import Iterable

import torch
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
from sglang.srt.models.dflash import DFlashDraftModel
from sglang.srt.models.registry import ModelRegistry
from sglang.srt.speculative.draft_worker_common import build_draft_tp_worker
from torch import nn

from jetspec_sglang.kernels.top_k import top_k_entropy, top_k_logprobs
from jetspec_sglang.tree import DraftProposal

from ..checkpoint_block import ARCHITECTURE, parse_block_config
from ..checkpoint_corrector import TREEFLASH, our_names
from ..contract import CommittedTokens, DrafterSpec
from ..head_config import HeadConfig
from ..path_corrector import make_corrector
from ..path_expander import CorrectedExpander, candidates_needed
from .block_input import DraftBlockInput


class BlockModel(DFlashDraftModel):
    """SGLang's DFlash module, told the truth about causality, with our path corrector if the head has one.

    Published JetSpec heads say `dflash_config.causal_head`, which SGLang does not read: it would run them
    bidirectionally, silently. The block is embedded by the target's own embedding, set after loading.
    """

    def __init__(self, config, quant_config=None, prefix: str = "") -> None:
        head = parse_block_config(config.to_dict(), "the draft head's config")
        config.is_causal = head.causal
        config.layer_types = ["full_attention"] * config.num_hidden_layers
        if head.corrector is not None:  # SGLang would make a Domino head's modules, too
            config.dflash_config = config.dflash_config | {"projector_type": None}
        super().__init__(config, quant_config, prefix)
        if head.corrector is not None:
            self.path_corrector = make_corrector(head)
            if self.path_corrector.reads_residual:
                self.norm.register_forward_hook(self._keep_residual)
        self._target_embedding: list[nn.Module] = []  # in a list: its parameters are not ours
        for layer in self.layers:
            # The fused table kernel is Triton; without it the module takes the plain operations.
            layer.self_attn.use_table_qk_norm_rope &= torch.cuda.is_available()

    def _keep_residual(self, _norm: nn.Module, _inputs: tuple, output: tuple) -> None:
        self.residual = output[1]  # [rows, H], with what the last layer added to it

    def share_embedding(self, embedding: nn.Module) -> None:
        self._target_embedding = [embedding]

    def forward_embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self._target_embedding[0](input_ids)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]):
        super().load_weights(our_names(weights))


class BlockDrafter:
    """Drafts for a batch of requests: `append_context` after each commit, and each round `propose`, or an `expander`
    where the head has a path corrector.

    The head's weights and KV pool live in an SGLang worker of their own (`self.worker`), which shares the
    target's slot allocator and request table.
    """

    frontier = None  # a node costs no forward

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
        ModelRegistry.models |= {ARCHITECTURE: BlockModel, TREEFLASH: BlockModel}
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
        if head.corrector is not None and head.corrector.kind == "treeflash":
            lm_head = self.lm_head
            self.model.path_corrector.share(self.model.norm.weight, lambda ids: lm_head.weight[ids])
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
        kept = min(candidates or self.width, self.head.vocab_size)
        return self._rows(self._block(anchors, slots, batch), kept, entropy)

    def expander(self, slots: torch.Tensor, batch, *, width: int, entropy: bool = False) -> "CorrectedBlock":
        """For the trees of one round; see `contract.PathDrafter`."""
        return CorrectedBlock(self, slots, batch, width, entropy)

    def _block(self, anchors: torch.Tensor, slots: torch.Tensor, batch) -> torch.Tensor:
        """The head's outputs [B, L - 1, H] for the depths below `anchors`; the other arguments are `propose`'s."""
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
        return self._drafted(hidden, length)

    def _drafted(self, rows: torch.Tensor, length: int) -> torch.Tensor:
        """Of rows [B * L, H] those that draft a depth, [B, L - 1, H]."""
        rows = rows.view(-1, length, rows.shape[-1])
        return rows[:, :-1] if self.head.shifted else rows[:, 1:]

    def _rows(self, hidden: torch.Tensor, kept: int, entropy: bool) -> DraftProposal:
        """The `kept` likeliest tokens behind each of the outputs [B, D, H]."""
        logits = self.lm_head.quant_method.apply(self.lm_head, hidden.flatten(0, 1))
        logits, shape = logits[:, : self.head.vocab_size], hidden.shape[:2]
        if entropy:
            logprobs, tokens, row_entropy = top_k_entropy(logits, kept)
            row_entropy = row_entropy.view(shape)
        else:
            logprobs, tokens = top_k_logprobs(logits, kept)
            row_entropy = None
        return DraftProposal(tokens.view(*shape, -1), logprobs.view(*shape, -1), row_entropy)


class CorrectedBlock:
    """`tree.Expander` of one round: the block's forward when the anchors come, then rows for each node."""

    def __init__(self, drafter: BlockDrafter, slots: torch.Tensor, batch, width: int, entropy: bool) -> None:
        self.drafter, self.slots, self.batch = drafter, slots, batch
        self.width, self.entropy = width, entropy

    @torch.inference_mode()
    def __call__(self, tokens: torch.Tensor, parents: torch.Tensor, depth: int) -> DraftProposal:
        if depth == 0:
            self.rows = self._rows(tokens[:, 0])
        return self.rows(tokens, parents, depth)

    def _rows(self, anchors: torch.Tensor) -> CorrectedExpander:
        drafter, corrector = self.drafter, self.drafter.model.path_corrector
        hidden = drafter._block(anchors, self.slots, self.batch)
        kept = candidates_needed(corrector, self.width, drafter.head.vocab_size)
        block = drafter._rows(hidden, kept, self.entropy)
        if corrector.reads_residual:
            hidden = drafter._drafted(drafter.model.residual, self.slots.shape[1])
        return CorrectedExpander(corrector, drafter.model.forward_embed, hidden, block, self.width)
