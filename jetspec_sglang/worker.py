"""The worker that SGLang's scheduler drives: prefill, then rounds of draft, build, verify, accept, commit."""

import torch
from sglang.srt.arg_groups.overrides import resolving_view
from sglang.srt.layers.logprob_processor import compute_spec_logprobs
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.speculative.base_spec_worker import BaseSpecWorker

from jetspec_sglang.drafters.checkpoint import read_head_config
from jetspec_sglang.drafters.contract import DrafterFactory
from jetspec_sglang.drafters.registry import DRAFTERS
from jetspec_sglang.tree import Acceptance, DraftProposal, TokenTree, build_tree

from .config import resolve_config
from .inputs import RoundState, TreeVerifyInput
from .kv import commit_moves, move_committed, reserved_slots
from .round_stats import RoundStats
from .sampling import TargetChoice, accept, apply_logit_rules, path_free_rows


class JetSpecWorker(BaseSpecWorker):
    """One SGLang speculative worker (V2 schema, overlap schedule on or off).

    Attributes that SGLang asks of a plain worker and that are not here are the target worker's.
    """

    def __init__(self, server_args, gpu_id: int, nccl_port: int, target_worker) -> None:
        super().__init__()
        self._target_worker = target_worker
        self.runner = target_worker.model_runner
        view = resolving_view(server_args)
        head = read_head_config(view.speculative_draft_model_path)
        self.config = resolve_config(view, head)
        self.device = target_worker.device
        # Read by SGLang's metrics.
        self.speculative_num_steps = self.config.depth
        self.speculative_num_draft_tokens = self.config.budget
        self.max_depth = min(self.config.depth, self.config.budget - 1)
        self.round_stats = RoundStats()
        make_drafter: DrafterFactory = DRAFTERS.get(self.config.drafter)
        self.drafter = make_drafter(
            head=head,
            width=self.config.width,
            depth=self.config.depth,
            server_args=server_args,
            gpu_id=gpu_id,
            nccl_port=nccl_port,
            target_worker=target_worker,
            attention_backend=view.speculative_draft_attention_backend or view.attention_backend,
        )
        self._draft_worker = self.drafter.worker

    def __getattr__(self, name: str):
        # Only reached for what this class lacks; `_target_worker` itself is missing only before __init__.
        if name == "_target_worker":
            raise AttributeError(name)
        return getattr(self._target_worker, name)

    @property
    def spec_v2_attn_backends(self) -> tuple:
        return (self.runner.attn_backend, self.drafter.runner.attn_backend)

    def weight_update_runners(self) -> list:
        return [("draft", self.drafter.runner)]

    def init_cuda_graphs(self) -> None:
        """Set up the drafter's eager runner. Rounds run eagerly: neither verify nor draft is captured."""
        self._draft_worker.init_cuda_graphs(capture_decode_cuda_graph=False)

    def on_verify_complete_cpu(self, num_correct_drafts_per_req: list[int], batch_size: int = 0) -> None:
        self.round_stats.count(num_correct_drafts_per_req)

    def forward_batch_generation(
        self, batch, on_publish=None, grammar_barrier=None, pp_proxy_tensors=None
    ) -> GenerationBatchResult:
        """One scheduler step. `batch` may be rewritten freely: the scheduler restores it."""
        publish = on_publish or (lambda seq_lens: None)
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch:
            return self._prefill(batch, publish)
        if batch.forward_mode.is_idle():
            return self._idle(publish)
        with torch.inference_mode():
            return self._round(batch, publish)

    def _prefill(self, batch, publish) -> GenerationBatchResult:
        """The target's prefill (or one chunk of it), and the drafter's context for the same tokens.

        Written before returning: the radix cache may share these slots right after.
        """
        result = self.target_worker.forward_batch_generation(
            batch, capture_hidden_mode=CaptureHiddenMode.FULL
        )
        result.new_seq_lens = batch.seq_lens
        publish(batch.seq_lens)
        positions = torch.cat(
            [
                torch.arange(start, start + length)
                for start, length in zip(batch.prefix_lens, batch.extend_lens, strict=True)
            ]
        ).to(self.device, non_blocking=True)
        taps = result.logits_output.hidden_states[: len(positions)]  # behind it only alignment padding
        self.drafter.append_context(taps, batch.out_cache_loc, positions)
        result.logits_output.hidden_states = None
        result.next_draft_input = RoundState(result.next_token_ids.to(torch.int64))
        return result

    def _idle(self, publish) -> GenerationBatchResult:
        nothing = torch.empty(0, dtype=torch.int64, device=self.device)
        publish(nothing)
        return GenerationBatchResult(
            next_token_ids=nothing,
            accept_lens=nothing.to(torch.int32),
            new_seq_lens=nothing,
            next_draft_input=RoundState(nothing),
            speculative_num_draft_tokens=self.config.budget,
            speculative_output_stride=self.max_depth + 1,
        )

    def _round(self, batch, publish) -> GenerationBatchResult:
        """Draft, build, verify, accept, commit: see docs/architecture.md."""
        stage = self.round_stats.stage
        anchors = batch.spec_info.bonus_tokens.to(torch.int64)
        committed = batch.seq_lens
        table = self.runner.req_to_token_pool.req_to_token
        window = max(self.config.budget, self.drafter.block_length)
        slots = reserved_slots(table, batch.req_pool_indices, committed, window)

        with stage("draft"):
            proposal = self._propose(anchors, slots, batch)
        with stage("build"):
            tree = self._build(proposal, anchors)
            slots = slots[:, : self.config.budget]
            verify_input = TreeVerifyInput.of(tree, batch, self.runner.model_config.context_len)
        with stage("verify"):
            verified, verify_batch = self._verify(verify_input, slots, batch)
        with stage("accept"):
            logits_output = verified.logits_output
            accepted = self._accept(tree, verify_input, logits_output, batch)
            new_seq_lens = committed + accepted.lengths
            publish(new_seq_lens)
        with stage("commit"):
            self._commit(accepted, slots, committed, logits_output.hidden_states)
            logits_output.hidden_states = None
        if batch.return_logprob:
            self._add_logprobs(accepted, logits_output, batch)

        last = (accepted.lengths - 1)[:, None]
        return GenerationBatchResult(
            logits_output=logits_output,
            next_token_ids=accepted.tokens.clamp(min=0).flatten(),
            accept_lens=accepted.lengths.to(torch.int32),
            new_seq_lens=new_seq_lens,
            next_draft_input=RoundState(accepted.tokens.gather(1, last)[:, 0]),
            speculative_num_draft_tokens=self.config.budget,
            speculative_output_stride=self.max_depth + 1,
            extra_keep_alive_refs=[verify_batch, verify_input],
        )

    def _propose(self, anchors: torch.Tensor, slots: torch.Tensor, batch) -> DraftProposal | None:
        if self.max_depth == 0:
            return None  # budget 1: the root alone, which is plain decoding
        return self.drafter.propose(anchors, slots[:, : self.drafter.block_length], batch)

    def _build(self, proposal: DraftProposal | None, anchors: torch.Tensor) -> TokenTree:
        if proposal is None:
            return TokenTree.roots(anchors)
        return build_tree(proposal, anchors, self.config.budget, scoring=self.config.scoring)

    def _verify(self, verify_input: TreeVerifyInput, slots: torch.Tensor, batch):
        """The target's forward over all nodes → (its result, its forward batch)."""
        batch.forward_mode = ForwardMode.TARGET_VERIFY
        batch.spec_info = verify_input
        batch.input_ids = verify_input.draft_token
        batch.out_cache_loc = slots.flatten()
        forward_batch = ForwardBatch.init_new(
            batch,
            self.runner,
            capture_hidden_mode=CaptureHiddenMode.FULL,
            return_hidden_states_before_norm=False,
        )
        result = self.target_worker.forward_batch_generation(
            batch=None, forward_batch=forward_batch, is_verify=True
        )
        return result, forward_batch

    def _accept(self, tree: TokenTree, verify_input: TreeVerifyInput, logits_output, batch) -> Acceptance:
        logits = logits_output.next_token_logits.view(tree.batch_size, tree.budget, -1)
        apply_logit_rules(logits, batch.sampling_info)
        choice = TargetChoice(logits, verify_input.positions.view(tree.tokens.shape), batch.sampling_info)
        return accept(tree, choice, self.max_depth, path_free_rows(batch.reqs, logits.device))

    def _commit(
        self, accepted: Acceptance, slots: torch.Tensor, committed: torch.Tensor, taps: torch.Tensor
    ) -> None:
        """Bring the accepted nodes' KV to the front of the window, and give the drafter their features."""
        to, source = commit_moves(slots, accepted.path, accepted.lengths)
        move_committed(self.runner.token_to_kv_pool, to, source)
        batch, length = accepted.path.shape
        columns = torch.arange(length, device=slots.device)
        rows = accepted.path.clamp(min=0) + torch.arange(batch, device=slots.device)[:, None] * slots.shape[1]
        positions = committed[:, None] + columns
        if slots.device.type == "cpu":  # the host may look: leave padding out
            live = columns < accepted.lengths[:, None]
            rows, to, positions = rows[live], to[live], positions[live]
        self.drafter.append_context(taps[rows.flatten()], to.flatten(), positions.flatten())

    def _add_logprobs(self, accepted: Acceptance, logits_output, batch) -> None:
        """Log-probabilities of the committed tokens, in SGLang's layout (`[B, max_depth + 1]`)."""
        batch_size = accepted.path.shape[0]
        nodes = (
            accepted.path.clamp(min=0)
            + torch.arange(batch_size, device=self.device)[:, None] * self.config.budget
        )
        chosen = torch.zeros(batch_size * self.config.budget, dtype=torch.int64, device=self.device)
        live = accepted.path >= 0
        chosen[nodes[live]] = accepted.tokens[live]
        compute_spec_logprobs(batch, logits_output, chosen, accept_index=nodes)
