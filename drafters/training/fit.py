"""Train a draft head: ``python -m jetspec_sglang.drafters.training.fit --config FILE``.

One loop: sample anchors, run the head on their blocks, soft-label loss through the frozen lm_head, AdamW.
The output folder gets ``checkpoint.pt`` (the run goes on from it when started again) and ``metrics.jsonl``.
"""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Callable, Iterator

import torch

from ..causal_head import CausalParallelHead
from . import state
from .batch import Batch, collate, sample_anchors
from .config import FitConfig
from .evaluate import evaluate
from .initialise import Target, head_config, initialise, load_target
from .loss import soft_label_loss, soft_targets
from .shards import DataError, Folder, Ref, plan

LOG_STEPS = 20
FINAL_LR = 0.05  # share of the peak at which the cosine ends
PLAN, ANCHORS = 0, 1  # purposes of random draws

Report = Callable[[dict], None]


class Run:
    """A training run: everything that lives from the first step to the last."""

    def __init__(self, config: FitConfig) -> None:
        self.config = config
        self.folder = Folder(config.data)
        names = self.folder.names()
        if not names:
            raise DataError(f"no shard-*.safetensors in {config.data}")
        self.first = self.folder.shard(names[0])
        self.target = load_target(config.target, getattr(torch, config.dtype))
        shape = head_config(config.head, self.target.model.config, self.first.target_layer_ids)
        self.head = CausalParallelHead(shape)
        self.optimizer = _adamw(self.head, config)
        config.output.mkdir(parents=True, exist_ok=True)
        saved = state.load(config.output)
        if saved is None:
            self.progress = state.Progress()
            initialise(self.head, self.target.model, self.first.read(0).tokens)
        self.ema = state.Ema(self.head, config.ema) if config.ema else None
        if saved is not None:
            self.progress = state.restore(saved, self.head, self.optimizer, self.ema, shape)
        # The whole model was only needed for the start.
        self.target = Target(torch.nn.Module(), self.target.embedding, self.target.lm_head)
        self.evaluation: dict | None = saved["evaluation"] if saved else None

    def share_done(self) -> float:
        """0 at the start, 1 at the end of the budget."""
        if self.config.minutes is not None:
            return self.progress.seconds / (self.config.minutes * 60)
        assert self.config.steps is not None  # FitConfig takes exactly one of the two
        return self.progress.step / self.config.steps

    def batches(self) -> Iterator[list[Ref]]:
        """Pass after pass; shards that have appeared meanwhile join at the start of a pass."""
        config, progress = self.config, self.progress
        while True:
            if not progress.shards:
                progress.shards = self.folder.names()
            refs = self.folder.refs(progress.shards)
            if not refs:
                raise DataError(f"no sequence in {config.data} has room for an anchor")
            rng = state.generator(config.seed, PLAN, progress.passes)
            batches = plan(refs, config.batch_anchors, config.anchors_per_sequence, rng)
            while progress.cursor < len(batches):  # moved by the loop, once a batch has been used
                yield batches[progress.cursor]
            progress.passes, progress.cursor, progress.shards = progress.passes + 1, 0, []

    def make_batch(self, refs: list[Ref]) -> Batch:
        config, shape = self.config, self.head.config
        rng = state.generator(config.seed, ANCHORS, self.progress.step)
        sequences = [ref.read() for ref in refs]
        blocks = [
            sample_anchors(sequence, config.anchors_per_sequence, shape, config.gamma, rng)
            for sequence in sequences
        ]
        return collate(sequences, blocks, shape, config.gamma)

    def step(self, batch: Batch) -> dict[str, float]:
        """One update. ``excess`` is the loss above its floor, the teacher's own entropy."""
        rate = self.config.learning_rate * schedule(self.share_done(), self.config.warmup)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss, floor = self.loss(batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.head.parameters(), 1.0)
        if not math.isfinite(norm):
            raise FloatingPointError(f"gradient norm is {norm} at step {self.progress.step}")
        self.optimizer.step()
        if self.ema:
            self.ema.update(self.head, self.progress.step)
        return {"loss": loss.item(), "excess": loss.item() - floor, "grad_norm": norm.item(), "lr": rate}

    def loss(self, batch: Batch) -> tuple[torch.Tensor, float]:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.config.dtype == "bfloat16"):
            context = self.head.context_kv(batch.taps.float(), batch.context_positions())
            embeddings = self.target.embedding[batch.block_ids]
            hidden = self.head.block_hidden(embeddings, batch.positions, context, batch.mask)
        rows = hidden.flatten(0, 1)[batch.rows]
        ids, probs, entropy = soft_targets(
            batch.topk_ids, batch.topk_logprobs, batch.labels, self.config.hard_weight
        )
        loss = soft_label_loss(rows, self.target.lm_head, ids, probs, batch.weights)
        return loss, (entropy * batch.weights).sum().item()

    def evaluate(self, tokens: int | None) -> dict | None:
        """Held-out numbers of the weights that would be exported; None without held-out data."""
        names = self.folder.names("heldout")
        if not names:
            return None
        head = self.head
        if self.ema:
            head = CausalParallelHead(self.head.config)
            head.load_state_dict(self.ema.tensors)
        self.evaluation = evaluate(head, self.target, self.folder.refs(names), tokens)
        return self.evaluation

    def save(self) -> None:
        state.save(
            self.config.output,
            self.progress,
            self.head,
            self.optimizer,
            self.ema,
            head_config=self.head.config.model_dump(),
            fit_config=self.config.model_dump(mode="json"),
            data={"shards": self.folder.names(), **self.first.meta},
            evaluation=self.evaluation,
        )


def schedule(share: float, warmup: float) -> float:
    """Factor of the learning rate at this share of the run: linear warm-up, then cosine down to
    FINAL_LR."""
    if share < warmup:
        return max(share / warmup, 0.01)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, (share - warmup) / (1 - warmup))))
    return FINAL_LR + (1 - FINAL_LR) * cosine


def _adamw(head: CausalParallelHead, config: FitConfig) -> torch.optim.AdamW:
    matrices = [p for p in head.parameters() if p.dim() > 1]
    norms = [p for p in head.parameters() if p.dim() == 1]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": norms, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.95), fused=True)


def fit(config: FitConfig, progress: Report = lambda _: None) -> dict | None:
    """Train until the budget is used up or SIGTERM/SIGINT comes; returns the last evaluation.

    ``progress`` is called with every metrics record. A checkpoint is always written before returning.
    """
    run = Run(config)
    stop: list[int] = []
    handlers = {
        number: signal.signal(number, lambda got, _frame: stop.append(got))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        with open(config.output / "metrics.jsonl", "a") as log:

            def report(record: dict) -> None:
                minutes = round(run.progress.seconds / 60, 3)
                record = {"step": run.progress.step, "minutes": minutes, **record}
                log.write(json.dumps(record) + "\n")
                log.flush()
                progress(record)

            _loop(run, report, stop)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return run.evaluation


def _loop(run: Run, report: Report, stop: list[int]) -> None:
    config, progress = run.config, run.progress
    last_save = last_eval = time.monotonic()
    if progress.step == 0 and (result := run.evaluate(config.eval_tokens)):
        report({"heldout": result})
    window: list[dict] = []
    anchors, since = 0, time.monotonic()
    batches = run.batches()
    while run.share_done() < 1 and not stop:
        began = time.monotonic()
        batch = run.make_batch(next(batches))
        window.append(run.step(batch))
        anchors += batch.anchors
        progress.step += 1
        progress.cursor += 1
        progress.seconds += time.monotonic() - began
        if progress.step % LOG_STEPS == 0:
            now = time.monotonic()
            mean = {key: float(f"{sum(each[key] for each in window) / len(window):.5g}") for key in window[0]}
            rate = round(anchors / (now - since), 1)
            report({**mean, "anchors_per_s": rate, "passes": progress.passes})
            window, anchors, since = [], 0, now
        if time.monotonic() - last_eval > config.eval_minutes * 60:
            if result := run.evaluate(config.eval_tokens):
                report({"heldout": result})
            last_eval = since = time.monotonic()
        if time.monotonic() - last_save > config.checkpoint_minutes * 60:
            run.save()
            last_save = time.monotonic()
    if not stop and (result := run.evaluate(None)):
        report({"heldout": result})
    run.save()
