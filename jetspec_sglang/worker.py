"""The worker that SGLang's scheduler drives: prefill, then rounds of draft, build, verify, accept, commit."""

from dataclasses import asdict

import torch
from sglang.srt.arg_groups.overrides import resolving_view
from sglang.srt.layers.logprob_processor import compute_spec_logprobs
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.speculative.base_spec_worker import BaseSpecWorker

from jetspec_sglang.drafters.contract import CommittedTokens
from jetspec_sglang.tree import Acceptance, TokenTree
from jetspec_sglang.tree.budget import CostModel, Plan, RoundShape

from .acceptance import accept_each, in_effect
from .bandit_budget import BanditBudget
from .ceiling import ceiling
from .config import resolve_config
from .drafting import TreeSource, tree_source
from .dry_run import measure_cost
from .inputs import RoundState, TreeVerifyInput
from .kv import SINK, commit_moves, move_committed, reserved_slots
from .metrics import RoundMetrics
from .refusals import Launch
from .round_budget import FixedBudget, LoadBudget, Note, RoundBudget
from .round_stats import RoundStats
from .sampling import apply_logit_rules, path_free_rows
from .served_head import head_of
from .stage_clock import stage_clock
from .trace import Trace
from .tree_settings import TreeSettings, publish


class JetSpecWorker(BaseSpecWorker):
    """One SGLang speculative worker (V2 schema, overlap schedule on or off).

    Attributes that SGLang asks of a plain worker and that are not here are the target worker's.
    """

    def __init__(self, server_args, gpu_id: int, nccl_port: int, target_worker) -> None:
        super().__init__()
        self._target_worker = target_worker
        self.runner = target_worker.model_runner
        view = resolving_view(server_args)
        head = head_of(view.speculative_draft_model_path)
        self.config = resolve_config(view, head)
        self.device = target_worker.device
        # Read by SGLang's metrics.
        self.speculative_num_steps = self.config.depth
        self.speculative_num_draft_tokens = self.config.budget
        self.max_depth = min(self.config.depth, self.config.budget - 1)
        self.settings = TreeSettings.of_server(self.config)
        publish(self.settings)
        self.round_stats = RoundStats(RoundMetrics() if view.enable_metrics else None)
        self.clock = stage_clock(self.device)
        self.trace = Trace()
        self.budget: RoundBudget = FixedBudget()
        self.source: TreeSource = tree_source(
            self.config,
            head,
            self.clock,
            view.enable_metrics,
            server_args=server_args,
            gpu_id=gpu_id,
            nccl_port=nccl_port,
            target_worker=target_worker,
            attention_backend=Launch(view).draft_attention_backend,
        )
        self._draft_worker = self.source.worker
        self._capture = CaptureHiddenMode.FULL if self.source.taps else CaptureHiddenMode.NULL

    def __getattr__(self, name: str):
        # Only reached for what this class lacks; `_target_worker` itself is missing only before __init__.
        if name == "_target_worker":
            raise AttributeError(name)
        return getattr(self._target_worker, name)

    @property
    def spec_v2_attn_backends(self) -> tuple:
        return tuple(runner.attn_backend for runner in (self.runner, *self.source.runners))

    def weight_update_runners(self) -> list:
        return [("draft", runner) for runner in self.source.runners]

    def init_cuda_graphs(self) -> None:
        """Set up the drafter's eager runner. Rounds run eagerly: neither verify nor draft is captured.

        It is the last thing that SGLang asks for before requests come, so rounds can be measured now.
        """
        if self._draft_worker is not None:
            self._draft_worker.init_cuda_graphs(capture_decode_cuda_graph=False)
        if self.config.budget_policy == "adaptive":
            self.budget = LoadBudget(self._measured_cost(), self.config.budget, self.max_depth)
        elif self.config.budget_policy == "bandit":
            self.budget = BanditBudget(self.config.budget)

    def _measured_cost(self) -> CostModel:
        """From rounds that are no traffic, so nothing counts them."""
        served, self.round_stats = self.round_stats, RoundStats()
        try:
            return measure_cost(self)
        finally:
            self.round_stats = served

    def report(self) -> dict:
        """What `/server_info` shows of this worker: plain values, ready for JSON."""
        summary = self.round_stats.summary() | self.source.report()
        if self.max_depth:
            summary["ceiling"] = asdict(ceiling(self.round_stats.histogram, self.max_depth))
        if decided := self.budget.report():
            summary[self.config.budget_policy] = decided
        if rounds := self.trace.rows():
            summary["trace"] = rounds
        return summary

    def on_verify_complete_cpu(self, num_correct_drafts_per_req: list[int], batch_size: int = 0) -> None:
        self.round_stats.count(num_correct_drafts_per_req)

    def note_request_finished(self, *, rid: str, natural_stop: bool) -> None:
        self.source.finished(rid)

    def clear_cache_pool(self) -> None:
        self.source.clear()

    def forward_batch_generation(
        self, batch, on_publish=None, grammar_barrier=None, pp_proxy_tensors=None
    ) -> GenerationBatchResult:
        """One scheduler step. `batch` may be rewritten freely: the scheduler restores it."""
        publish = on_publish or (lambda seq_lens: None)
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch:
            self.clock.interrupted()
            return self._prefill(batch, publish)
        if batch.forward_mode.is_idle():
            return self._idle(publish)
        settings = [
            in_effect(self.settings.of_request(params.custom_params), params)
            for params in (req.sampling_params for req in batch.reqs)
        ]
        with torch.inference_mode():
            result = self.round(batch, settings, publish)
        self._learn()
        return result

    def _prefill(self, batch, publish) -> GenerationBatchResult:
        """The target's prefill (or one chunk of it), and the drafter's context for the same tokens.

        Written before returning: the radix cache may share these slots right after.
        """
        tokens = batch.input_ids.to(torch.int64)
        result = self.target_worker.forward_batch_generation(batch, capture_hidden_mode=self._capture)
        result.new_seq_lens = batch.seq_lens
        publish(batch.seq_lens)
        positions = torch.cat(
            [
                torch.arange(start, start + length)
                for start, length in zip(batch.prefix_lens, batch.extend_lens, strict=True)
            ]
        ).to(self.device, non_blocking=True)
        count = len(positions)  # behind these rows is only alignment padding
        taps = _taps(result.logits_output, slice(count), count)
        lengths = torch.tensor(batch.extend_lens).to(self.device, non_blocking=True)
        rows = batch.req_pool_indices.repeat_interleave(lengths, output_size=len(positions))
        previous = self._slots_before(rows, positions)
        committed = CommittedTokens(taps, batch.out_cache_loc, positions, tokens, previous)
        self.source.take_in(committed, wait=False)
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

    def round(self, batch, settings: list[TreeSettings], publish) -> GenerationBatchResult:
        """Draft, build, verify, accept, commit: see docs/architecture.md. settings: of each request."""
        stage = self.clock.stage
        anchors = batch.spec_info.bonus_tokens.to(torch.int64)
        committed = batch.seq_lens
        batch.seq_lens_sum = int(batch.seq_lens_cpu.sum())  # SGLang leaves it open when a batch changes
        context = batch.seq_lens_sum // len(settings)
        table = self.runner.req_to_token_pool.req_to_token
        window = max(self.config.budget, self.source.slots)
        slots = reserved_slots(table, batch.req_pool_indices, committed, window)

        plan = self.budget.plan(settings, context)
        drafted = self.source.trees(plan, anchors, slots, settings, batch)
        with stage("build"):
            nodes = self.budget.cut(plan, drafted, settings, context)
            tree = drafted.prefix(nodes)
            slots = slots[:, :nodes]
            limit = self.runner.model_config.context_len
            verify_input = TreeVerifyInput.of(tree, batch, limit, self._capture)
        shape = RoundShape(len(settings), nodes, plan.depth, context)
        self.budget.chosen(shape, plan.probe)
        self.round_stats.start(shape.batch, nodes)
        with stage("verify"):
            verified, verify_batch = self._verify(verify_input, slots, batch)
        with stage("accept"):
            logits_output = verified.logits_output
            accepted = self._accept(tree, settings, verify_input, logits_output, batch)
            new_seq_lens = committed + accepted.lengths
            publish(new_seq_lens)
        with stage("commit"):
            rows = batch.req_pool_indices
            tokens = self._commit(tree, accepted, slots, rows, committed, logits_output)
            self.source.take_in(tokens, wait=plan.depth == 0)
            logits_output.hidden_states = None
        if batch.return_logprob:
            self._add_logprobs(accepted, logits_output, batch)
        if traced := [(row, batch.reqs[row].rid) for row, own in enumerate(settings) if own.trace]:
            self.trace.keep(traced, tree, accepted)
        self._end_round(plan, shape, drafted, accepted)

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

    def _verify(self, verify_input: TreeVerifyInput, slots: torch.Tensor, batch):
        """The target's forward over all nodes → (its result, its forward batch)."""
        batch.forward_mode = ForwardMode.TARGET_VERIFY
        batch.spec_info = verify_input
        batch.input_ids = verify_input.draft_token
        batch.out_cache_loc = slots.flatten()
        forward_batch = ForwardBatch.init_new(
            batch,
            self.runner,
            capture_hidden_mode=self._capture,
            return_hidden_states_before_norm=False,
        )
        result = self.target_worker.forward_batch_generation(
            batch=None, forward_batch=forward_batch, is_verify=True
        )
        return result, forward_batch

    def _accept(
        self,
        tree: TokenTree,
        settings: list[TreeSettings],
        verify_input: TreeVerifyInput,
        logits_output,
        batch,
    ) -> Acceptance:
        logits = logits_output.next_token_logits.view(tree.batch_size, tree.budget, -1)
        apply_logit_rules(logits, batch.sampling_info)
        # Nothing was drawn for a root alone.
        rules = ["match" if tree.budget == 1 else own.acceptance for own in settings]
        return accept_each(
            tree,
            logits,
            verify_input.positions.view(tree.tokens.shape),
            batch.sampling_info,
            self.max_depth,
            path_free_rows(batch.reqs, logits.device),
            rules,
        )

    def _commit(
        self,
        tree: TokenTree,
        accepted: Acceptance,
        slots: torch.Tensor,
        requests: torch.Tensor,
        committed: torch.Tensor,
        logits_output,
    ) -> CommittedTokens:
        """Bring the accepted nodes' KV to the front of the window -> what the drafter is to take in."""
        path = accepted.path[:, : slots.shape[1]]  # no longer than there are nodes: behind that is padding
        to, source = commit_moves(slots, path, accepted.lengths)
        move_committed(self.runner.token_to_kv_pool, to, source)
        columns = torch.arange(path.shape[1], device=slots.device)
        nodes = path.clamp(min=0)
        rows = nodes + torch.arange(len(slots), device=slots.device)[:, None] * slots.shape[1]
        positions = committed[:, None] + columns
        before = self._slots_before(requests, committed)
        previous = torch.cat([before[:, None], to[:, :-1]], dim=1)
        fields = [rows, to, positions, tree.tokens.gather(1, nodes), previous]
        if slots.device.type == "cpu":  # the host may look: leave padding out
            live = columns < accepted.lengths[:, None]
            fields = [field[live] for field in fields]
        rows, *others = [field.flatten() for field in fields]
        return CommittedTokens(_taps(logits_output, rows, len(rows)), *others)

    def _slots_before(self, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Slots [T] int64 of the tokens before those at `positions` [T] in `rows` [T] of the slot table."""
        table = self.runner.req_to_token_pool.req_to_token
        before = table[rows, (positions - 1).clamp(min=0)].to(torch.int64)
        return before.where(positions > 0, SINK)

    def _end_round(self, plan: Plan, shape: RoundShape, drafted: TokenTree, accepted: Acceptance) -> None:
        """Leave with the clock what the budget learns from."""
        if not self.budget.learns or drafted.budget == 1:
            self.clock.end_round(Note(plan, shape, 0))
            return
        on_path = torch.zeros(shape.batch, shape.nodes + 1, dtype=torch.bool, device=accepted.path.device)
        on_path.scatter_(1, accepted.path.where(accepted.path >= 0, shape.nodes), True)
        tensors = (drafted.logprob, drafted.depth, on_path)
        self.clock.end_round(Note(plan, shape, drafted.budget), tensors)

    def _learn(self) -> None:
        for finished in self.clock.finished():
            self.round_stats.add_stages(finished.seconds)
            self.budget.learn(finished)

    def _add_logprobs(self, accepted: Acceptance, logits_output, batch) -> None:
        """Log-probabilities of the committed tokens, in SGLang's layout (`[B, max_depth + 1]`)."""
        batch_size = accepted.path.shape[0]
        rows = len(logits_output.next_token_logits)
        first = torch.arange(0, rows, rows // batch_size, device=self.device)[:, None]
        nodes = accepted.path.clamp(min=0) + first
        chosen = torch.zeros(rows, dtype=torch.int64, device=self.device)
        live = accepted.path >= 0
        chosen[nodes[live]] = accepted.tokens[live]
        compute_spec_logprobs(batch, logits_output, chosen, accept_index=nodes)


def _taps(logits_output, rows: torch.Tensor | slice, count: int) -> torch.Tensor:
    """The target's features [count, K*H] of `rows`; [count, 0] where none were captured."""
    features = logits_output.hidden_states
    return torch.empty(count, 0) if features is None else features[rows]
