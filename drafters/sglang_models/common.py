"""What all heads need of SGLang: a worker of their own, and forwards over rows behind the committed tokens."""

from copy import copy

import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
from sglang.srt.speculative.dflash_info import DFlashVerifyInput
from sglang.srt.speculative.draft_worker_common import DraftWorkerBundle, build_draft_tp_worker


def draft_worker(
    *, server_args, gpu_id: int, nccl_port: int, target_worker, attention_backend: str
) -> DraftWorkerBundle:
    """SGLang's worker for a head: its weights and KV pool, with the target's slot allocator and request table."""
    return build_draft_tp_worker(
        server_args=server_args,
        gpu_id=gpu_id,
        nccl_port=nccl_port,
        target_model_config=target_worker.model_runner.model_config,
        algo_label="JETSPEC",
        attention_backend_override=attention_backend,
    )


def run_rows(
    runner, batch, rows: DFlashVerifyInput, slots: torch.Tensor, drafted: int = 0
) -> LogitsProcessorOutput:
    """One forward of a head over R rows a request, whose K/V goes to `slots` [B, R] int64.

    Behind the committed tokens there may be `drafted` scratch slots that count as prefix, too: theirs follow the
    committed ones in the table. The round goes on with `batch` as it is.
    """
    level = copy(batch)
    level.forward_mode = ForwardMode.TARGET_VERIFY
    level.spec_info = rows
    level.input_ids = rows.draft_token
    level.out_cache_loc = slots.flatten()
    level.seq_lens = batch.seq_lens + drafted
    level.seq_lens_cpu = batch.seq_lens_cpu + drafted
    level.seq_lens_sum = batch.seq_lens_sum + drafted * len(slots)
    forward_batch = ForwardBatch.init_new(
        level,
        runner,
        capture_hidden_mode=rows.capture_hidden_mode,
        return_hidden_states_before_norm=False,
    )
    return runner.forward(forward_batch).logits_output
