"""EAGLE-3 heads as SGLang serves them: one forward a depth, over the best nodes of that depth.

`drafters.autoregressive_head` says what is computed. Two things are kept of each committed token t, both in the
slot of the target's K/V: its fused feature f_t, and the K/V of the row before it, (f_{t-1}, token t). Neither
depends on a token after t, so a prefix that several texts share is the same for all of them, wherever SGLang's
radix cache ends it; the row of its last token, which depends on what follows, lies in the slot of what follows.
The slot of a text's first token holds no row, and is masked.
"""

from typing import Any

import torch
from sglang.srt.environ import envs
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.models.llama_eagle3 import LlamaForCausalLMEagle3
from sglang.srt.models.registry import ModelRegistry
from torch import nn

from jetspec_sglang.kernels.top_k import top_k_entropy, top_k_logprobs
from jetspec_sglang.tree import DraftProposal

from ..checkpoint_eagle import ARCHITECTURE
from ..contract import CommittedTokens, DrafterSpec
from ..head_config import FRONTIER, AutoregressiveConfig
from .common import draft_worker, run_rows
from .level_input import DraftLevelInput


class AutoregressiveModel(LlamaForCausalLMEagle3):
    """SGLang's EAGLE-3 module, with the target's own embedding and, where the head has none, its lm_head."""

    def __init__(self, config, quant_config=None, prefix: str = "") -> None:
        config.draft_vocab_size = getattr(config, "draft_vocab_size", None)  # null may be left out
        super().__init__(config, quant_config, prefix)
        del self.model.embed_tokens  # a head's copy is not loaded
        if self.load_lm_head_from_target:
            del self.lm_head
        self._shared: list[Any] = []  # target's modules, in a list: their parameters are not ours

    def share(self, embedding: nn.Module, lm_head: nn.Module) -> None:
        self._shared = [embedding, lm_head]

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self._shared[0](tokens)

    @torch.no_grad()
    def forward(self, input_ids, positions, forward_batch, input_embeds=None, pp_proxy_tensors=None):
        """Logits [rows, draft vocabulary], and as hidden states the rows' outputs before the norm, which are the
        features of the level below."""
        normed, (outputs,) = self.model(input_ids, positions, forward_batch, self.embed(input_ids))
        lm_head: Any = self._shared[1] if self.load_lm_head_from_target else self.lm_head
        logits = lm_head.quant_method.apply(lm_head, normed)[:, : self.config.draft_vocab_size]
        return LogitsProcessorOutput(next_token_logits=logits, hidden_states=outputs)


class AutoregressiveDrafter:
    """Drafts for a batch of requests: `append_context` after each commit, an `expander` each round.

    The head's weights and KV pool live in an SGLang worker of their own (`self.worker`), which shares the
    target's slot allocator and request table.
    """

    frontier = FRONTIER

    def __init__(
        self,
        *,
        head: AutoregressiveConfig,
        width: int,
        depth: int,
        server_args,
        gpu_id: int,
        nccl_port: int,
        target_worker,
        attention_backend: str,
    ) -> None:
        ModelRegistry.models[ARCHITECTURE] = AutoregressiveModel
        target = target_worker.model_runner
        # Published heads name the length they were trained at; they run at the target's positions.
        with envs.SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN.override(True):
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
        self.model.share(target.model.get_input_embeddings(), target.model.lm_head)
        self.head = head
        self.spec = DrafterSpec.of_head(head, depth, target.model_config.num_hidden_layers)
        self.context_limit = target.model_config.context_len
        token_ids = self.model.get_hot_token_id()
        self.token_ids = None if token_ids is None else token_ids.to(self.runner.device)
        self._features: torch.Tensor | None = None

    @property
    def features(self) -> torch.Tensor:
        """Fused features [slots, H] by slot; made at the first call, as pools don't exist before."""
        if self._features is None:
            slots = len(self.runner.token_to_kv_pool.get_key_buffer(0))
            weight = self.model.model.fc.weight
            self._features = weight.new_zeros(slots, self.head.hidden_size)
        return self._features

    def slots(self, depth: int) -> int:
        return self.head.slots(depth)

    def positions(self, lens: torch.Tensor) -> torch.Tensor:
        """Rotary positions of rows whose tokens are at `lens`: that of the feature, one before."""
        return (lens - 1).clamp(min=0, max=self.context_limit - 1)

    @torch.inference_mode()
    def append_context(self, committed: CommittedTokens) -> None:
        """Keep the tokens' features, and write the K/V of the rows (feature before, token)."""
        self.features[committed.slots] = self.model.model.fc(committed.taps)
        layer = self.model.model.layers[0]
        attention = layer.self_attn
        embedded = layer.input_layernorm(self.model.embed(committed.tokens))
        features = layer.hidden_norm(self.features[committed.previous])
        qkv, _ = attention.qkv_proj(torch.cat([embedded, features], dim=-1))
        q, k, v = qkv.split([attention.q_size, attention.kv_size, attention.kv_size], dim=-1)
        _, k = attention.rotary_emb(self.positions(committed.positions), q.contiguous(), k.contiguous())
        shape = (-1, attention.num_kv_heads, attention.head_dim)
        where = KVWriteLoc(committed.slots, physical=True)
        self.runner.token_to_kv_pool.set_kv_buffer(attention.attn, where, k.view(shape), v.view(shape))

    def expander(
        self,
        slots: torch.Tensor,
        batch,
        *,
        width: int,
        depth: int,
        budget: int,
        entropy: bool = False,
    ) -> "Expansion":
        """For the trees of one round; see `contract.PathDrafter`."""
        return Expansion(self, slots, batch, width, entropy)


class Expansion:
    """One round's trees under construction: called with a level's nodes, answers with their candidates."""

    def __init__(
        self, drafter: AutoregressiveDrafter, slots: torch.Tensor, batch, width: int, entropy: bool
    ) -> None:
        self.drafter, self.slots, self.batch = drafter, slots, batch
        self.width, self.entropy = width, entropy
        self.used = 0  # scratch slots that hold nodes
        # Of the last level: what takes the place of features below it, and which drafted nodes its nodes see.
        self.outputs = self.visible = slots.new_empty(0)

    @torch.inference_mode()
    def __call__(self, tokens: torch.Tensor, parents: torch.Tensor, depth: int) -> DraftProposal:
        """`tree.Expander`: tokens, parents [B, F] int64."""
        requests, nodes = tokens.shape
        itself = torch.eye(nodes, dtype=torch.bool, device=tokens.device).expand(requests, -1, -1)
        if depth == 0:
            features, self.visible = self._anchor_features()[:, None], itself
        else:
            features = _of_parents(self.outputs, parents)
            self.visible = torch.cat([_of_parents(self.visible, parents), itself], dim=2)
        logits, outputs = self._forward(tokens, features, depth)
        self.outputs = outputs.view(requests, nodes, -1)
        row_entropy = None
        if self.entropy:
            logprobs, ids, row_entropy = top_k_entropy(logits, self.width)
            row_entropy = row_entropy.view(requests, nodes)
        else:
            logprobs, ids = top_k_logprobs(logits, self.width)
        if self.drafter.token_ids is not None:
            ids = self.drafter.token_ids[ids]
        shape = (requests, nodes, self.width)
        return DraftProposal(ids.view(shape), logprobs.view(shape), row_entropy)

    def _anchor_features(self) -> torch.Tensor:
        """Of the tokens before the anchors, [B, H]."""
        table = self.drafter.runner.req_to_token_pool.req_to_token
        last = table[self.batch.req_pool_indices, self.batch.seq_lens - 1].to(torch.int64)
        return self.drafter.features[last]

    def _forward(self, tokens: torch.Tensor, features: torch.Tensor, depth: int):
        """-> logits [B * F, draft vocabulary], outputs [B * F, H]."""
        batch, nodes = self.batch, tokens.shape[1]
        positions = self.drafter.positions(batch.seq_lens + depth)
        level = DraftLevelInput.of(
            tokens,
            features,
            positions[:, None].expand(-1, nodes),
            self.visible,
            batch.seq_lens,
            batch.seq_lens_sum,
            first_is_seen=False,  # the row of a text's first token doesn't exist
        )
        slots = self.slots[:, self.used : self.used + nodes]
        answer = run_rows(self.drafter.runner, batch, level, slots, drafted=self.used)
        self.used += nodes
        return answer.next_token_logits, answer.hidden_states


def _of_parents(values: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
    """values [B, P, X] of the last level at parents [B, F] -> [B, F, X]."""
    return values.gather(1, parents[..., None].expand(-1, -1, values.shape[2]))
