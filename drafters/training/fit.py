"""The stage `fit`: sample anchors, run the head on them, a loss through the frozen lm_head, AdamW.

The run's folder gets ``checkpoint.pt`` (the run goes on from it when started again), ``metrics.jsonl`` and
TensorBoard's files. On several GPUs, under ``torchrun``, each process takes its share of a step's batches.
"""

from __future__ import annotations

import math
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from torch import Tensor, nn

from ..head_config import SpecBlockConfig
from . import state
from .batch import Batch, collate, sample_anchors
from .config import FitConfig, TrainConfig
from .corrected import CorrectedStudent, corrected_loss
from .disk import require_space
from .errors import TrainError
from .evaluate import evaluate
from .initialise import initialise
from .loss import few_labels, objective_loss
from .metrics import Metrics
from .shards import Folder, Ref, Sequence, plan
from .spec_block import SpecBlockStudent, spec_block_loss
from .student import DraftHead, Student, head_config, make_head, warm_start
from .target import TextReader, load_model, target_layer_ids

LOG_STEPS = 20
FINAL_LR = 0.05  # share of the peak at which the cosine ends
PLAN, ANCHORS, NEGATIVES = 0, 1, 2  # purposes of random draws

Report = Callable[[dict], None]


class Run:
    """A training run: everything that lives from the first step to the last."""

    def __init__(self, config: TrainConfig, target: str | Path) -> None:
        """Raises TrainError for whatever does not fit: data, target, head, disk, number of processes."""
        self.config, self.fit = config, config.fit
        self.accelerator = Accelerator(
            gradient_accumulation_steps=config.fit.accumulation, cpu=not torch.cuda.is_available()
        )
        self.device = self.accelerator.device
        if self.accelerator.num_processes > 1 and config.fit.steps is None:
            raise TrainError(
                "several processes must agree on the end of a run: set fit.steps, not fit.minutes"
            )
        online = config.features.mode == "online"
        self.folder = Folder(config.tokens_folder if online else config.features_folder)
        names = self.folder.names()
        if not names:
            stages = "`data`" if online else "`data` and `features`"
            raise TrainError(f"no shard-*.safetensors in {self.folder.path}: run {stages} first")

        model = load_model(target, torch.float32)
        taps = target_layer_ids(config, model.config)
        if not online:
            self.folder.require_taps(taps, model.config.hidden_size)
        self.shape = head_config(config.head, model.config, taps)
        with torch.random.fork_rng(
            devices=[]
        ):  # a corrector starts at random, the rest is filled from the target
            torch.manual_seed(config.seed)
            self.head = make_head(self.shape)
        config.run_folder.mkdir(parents=True, exist_ok=True)
        saved = state.load(config.run_folder)
        if saved is None:
            if config.fit.start:
                warm_start(self.head, self.shape, config.fit.start)
            else:
                initialise(self.head, model, self.folder.shard(names[0]).tokens(0).tokens)
        self.dtype = getattr(torch, config.fit.dtype)
        embedding = model.get_input_embeddings().weight.detach().to(self.device)
        self.lm_head = model.get_output_embeddings().weight.detach().to(self.device, self.dtype)
        del model  # a reader of texts has its own copy, in the dtype of matmuls
        self.reader = TextReader(target, taps, self.dtype, self.device) if online else None

        student: Student
        if config.head.corrector is not None:
            student = CorrectedStudent(self.head, embedding, config.fit.freeze_head)
        elif isinstance(self.shape, SpecBlockConfig):
            student = SpecBlockStudent(self.head, embedding)
        else:
            student = Student(self.head, embedding)
        self.student, self.optimizer = self.accelerator.prepare(student, _adamw(self.head, config.fit))
        self.ema = state.Ema(self.head, config.fit.ema) if config.fit.ema else None
        self.progress, self.evaluation, self.resumed = state.Progress(), None, saved is not None
        if saved is not None:
            self.progress = state.restore(saved, self.head, self.optimizer, self.ema, self.shape)
            self.evaluation = saved["evaluation"]
        require_space(
            config.run_folder,
            2
            * state.size(
                self.head, self.ema is not None
            ),  # the old checkpoint stays until the new one is whole
            "a checkpoint of the stage `fit`",
            "set `work` or fit.folder to another disk",
        )

    def share_done(self) -> float:
        """0 at the start, 1 at the end of the budget."""
        if self.fit.minutes is not None:
            return self.progress.seconds / (self.fit.minutes * 60)
        assert self.fit.steps is not None  # FitConfig takes exactly one of the two
        return self.progress.step / self.fit.steps

    def steps(self) -> Iterator[list[list[Ref]]]:
        """This process's batches of a step, pass after pass; new shards join at the start of a pass."""
        fit, progress, rank = self.fit, self.progress, self.accelerator.process_index
        while True:
            if not progress.shards:
                names = [self.folder.names()]
                progress.shards = broadcast_object_list(names)[0] if self._distributed else names[0]
            refs = self.folder.refs(progress.shards)
            if not refs:
                raise TrainError(
                    f"no text in {self.folder.path} has room for an anchor: make longer responses"
                )
            rng = state.generator(self.config.seed, PLAN, progress.passes)
            batches = plan(refs, fit.batch_anchors, fit.anchors_per_sequence, rng)
            a_step = fit.accumulation * self.accelerator.num_processes
            if len(batches) < a_step:
                raise TrainError(
                    f"the data makes {len(batches)} batches, but a step takes {a_step}: make more data"
                )
            while progress.cursor + a_step <= len(batches):  # moved by the loop, once a step is done
                yield batches[progress.cursor : progress.cursor + a_step][rank * fit.accumulation :][
                    : fit.accumulation
                ]
            progress.passes, progress.cursor, progress.shards = progress.passes + 1, 0, []

    @property
    def _distributed(self) -> bool:
        return self.accelerator.num_processes > 1

    def read(self, refs: list[Ref]) -> list[Sequence]:
        if self.reader is None:
            return [ref.shard.read(ref.index) for ref in refs]
        return self.reader.read([ref.shard.tokens(ref.index) for ref in refs], whole=True)

    def make_batch(self, refs: list[Ref], number: int) -> Batch:
        """The ``number``-th batch of the run over all processes; its anchors depend on that alone."""
        fit = self.fit
        rng = state.generator(self.config.seed, ANCHORS, number)
        sequences = self.read(refs)
        cuts = [
            sample_anchors(sequence, fit.anchors_per_sequence, self.shape.block_size, fit.gamma, rng)
            for sequence in sequences
        ]
        batch = collate(sequences, cuts, self.shape, rng)
        if fit.freeze_head and self.config.head.corrector is not None:  # the other rows can't be improved
            batch = batch.below(self.config.head.corrector.skip)
        return batch.to(self.device)

    def step(self, batches: list[list[Ref]]) -> dict[str, float]:
        """One update. Raises TrainError, with the batch saved, once the loss is not a number."""
        rate = self.fit.learning_rate * schedule(self.share_done(), self.fit.warmup)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        total, anchors, norm, parts = 0.0, 0, 0.0, Counter[str]()
        first = self.progress.step * self.fit.accumulation * self.accelerator.num_processes
        first += self.accelerator.process_index * self.fit.accumulation
        for number, refs in enumerate(batches, first):
            batch = self.make_batch(refs, number)
            with self.accelerator.accumulate(self.student):
                loss, named = self.loss(batch, number)
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    norm = float(self.accelerator.clip_grad_norm_(self.head.parameters(), self.fit.clip))
                if not math.isfinite(loss.item()) or not math.isfinite(norm):
                    self._give_up(loss.item(), norm, batch, refs)
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
            total += loss.item() / len(batches)
            parts.update({name: part.item() / len(batches) for name, part in named.items()})
            anchors += batch.count * self.accelerator.num_processes
        if self.ema:
            self.ema.update(self.head, self.progress.step)
        return {"loss": total, **parts, "grad_norm": norm, "lr": rate, "anchors": anchors}

    def loss(self, batch: Batch, number: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Of the ``number``-th batch of the run, and parts of it that get a metric of their own."""
        autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16)
        if self.config.head.corrector is not None:
            tokens, shares = few_labels(self.fit, batch.labels, batch.teacher)
            with autocast:
                rows = self.student(batch, tokens, self.lm_head)
            return corrected_loss(self.fit, rows, tokens, shares), {}
        rng = state.generator(self.config.seed, NEGATIVES, number)
        if isinstance(self.shape, SpecBlockConfig):
            with autocast:
                hidden, offsets = self.student(batch)
            loss, rank_loss = spec_block_loss(self.fit, self.shape, batch, hidden, offsets, self.lm_head, rng)
            return loss, {"rank_loss": rank_loss}
        with autocast:
            hidden = self.student(batch)
        return objective_loss(self.fit, hidden, self.lm_head, batch.labels, batch.teacher, rng), {}

    def _give_up(self, loss: float, norm: float, batch: Batch, refs: list[Ref]) -> None:
        path = self.config.run_folder / f"bad-batch-{self.progress.step}.pt"
        texts = [(str(ref.shard.path), ref.index) for ref in refs]
        torch.save({"batch": asdict(batch.to("cpu")), "texts": texts, "head": self.head.state_dict()}, path)
        raise TrainError(
            f"at step {self.progress.step} the loss is {loss} and the gradient's norm {norm}; batch and weights are "
            f"in {path}. Lower fit.learning_rate or fit.clip, or set fit.dtype to float32; the run goes on from "
            "its last checkpoint"
        )

    def best_head(self) -> DraftHead:
        """The weights that would be exported."""
        if self.ema is None:
            return self.head
        head = make_head(self.shape).to(self.device)
        head.load_state_dict({**self.head.state_dict(), **self.ema.tensors})
        return head

    def evaluate(self, tokens: int | None) -> dict | None:
        """Held-out numbers of `best_head`; None without held-out data, and in all processes but the first."""
        names = self.folder.names("heldout")
        if not names or not self.accelerator.is_main_process:
            return None
        refs, embedding = self.folder.refs(names), self.accelerator.unwrap_model(self.student).embedding
        result = evaluate(self.best_head(), embedding, self.lm_head, refs, self.read, tokens)
        self.evaluation = {"step": self.progress.step, **result}
        return result

    def save(self) -> None:
        if not self.accelerator.is_main_process:
            return
        state.save(
            self.config.run_folder,
            self.progress,
            self.head,
            self.optimizer,
            self.ema,
            head_config=self.shape.model_dump(),
            config=self.config.model_dump(mode="json"),
            data=self.described_data(),
            evaluation=self.evaluation,
        )

    def described_data(self) -> dict:
        """For the model card: what the shards say of themselves, and how much there is."""
        names = self.folder.names()
        meta = self.folder.shard(names[0]).meta
        return {**meta, "shards": len(names), "response_tokens": self.folder.response_tokens()}


def schedule(share: float, warmup: float) -> float:
    """Factor of the learning rate at this share of the run: linear warm-up, then cosine down to
    FINAL_LR."""
    if share < warmup:
        return max(share / warmup, 0.01)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, (share - warmup) / (1 - warmup))))
    return FINAL_LR + (1 - FINAL_LR) * cosine


def _adamw(head: nn.Module, config: FitConfig) -> torch.optim.AdamW:
    learned = [p for p in head.parameters() if p.requires_grad]
    matrices = [p for p in learned if p.dim() > 1]
    norms = [p for p in learned if p.dim() == 1]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": norms, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.95), fused=True)


def run(config: TrainConfig, target: str | Path, report: Report = lambda _: None) -> dict | None:
    """Train until the budget is used up or SIGTERM/SIGINT comes; returns the last evaluation.

    ``report`` is called with every record of the metrics. A checkpoint is always written before returning.
    """
    run = Run(config, target)
    if run.share_done() >= 1 and (run.evaluation or {}).get("step") == run.progress.step:
        return run.evaluation  # it was finished before
    stop: list[int] = []
    handlers = {}
    if run.accelerator.num_processes == 1:  # several must not stop at different steps
        for number in (signal.SIGTERM, signal.SIGINT):
            handlers[number] = signal.signal(number, lambda got, _frame: stop.append(got))
    main = run.accelerator.is_main_process
    metrics = (
        Metrics(config.run_folder, run.progress.step if run.resumed else None, config.fit.tensorboard)
        if main
        else None
    )

    def write(record: dict) -> None:
        if metrics is not None:
            minutes = round(run.progress.seconds / 60, 3)
            record = {"step": run.progress.step, "minutes": minutes, **record}
            metrics.write(record)
            report({**record, "share": run.share_done()})

    try:
        _loop(run, write, stop)
    finally:
        if metrics is not None:
            metrics.close()
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return run.evaluation


def _loop(run: Run, write: Report, stop: list[int]) -> None:
    fit, progress = run.fit, run.progress
    last_save = last_eval = time.monotonic()
    if progress.step == 0 and (result := run.evaluate(fit.eval_tokens)):
        write({"heldout": result})
    since, anchors = time.monotonic(), 0.0
    steps = run.steps()
    while run.share_done() < 1 and not stop:
        began = time.monotonic()
        values = run.step(next(steps))
        anchors += values.pop("anchors")
        progress.window.append(values)
        progress.step += 1
        progress.cursor += fit.accumulation * run.accelerator.num_processes
        progress.seconds += time.monotonic() - began
        if progress.step % LOG_STEPS == 0:
            now = time.monotonic()
            write({**_mean(progress.window), "anchors_per_s": round(anchors / (now - since), 1)})
            progress.window, since, anchors = [], now, 0.0
        if time.monotonic() - last_eval > fit.eval_minutes * 60:
            if result := run.evaluate(fit.eval_tokens):
                write({"heldout": result})
            last_eval = since = time.monotonic()
            anchors = 0.0
        if time.monotonic() - last_save > fit.checkpoint_minutes * 60:
            run.save()
            last_save = time.monotonic()
    if not stop and (result := run.evaluate(None)):
        write({"heldout": result})
    run.save()


def _mean(window: list[dict[str, float]]) -> dict[str, float]:
    """Of each value over the steps, to six digits."""
    return {key: float(f"{sum(each[key] for each in window) / len(window):.6g}") for key in window[0]}
