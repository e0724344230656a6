"""One process's part of a run, from joined process group to exported model."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from headway.checkpoint.layout import TrainingState
from headway.checkpoint.random_state import capture_random_state
from headway.checkpoint.save import SaveJob, save_checkpoint
from headway.data.loader import StepLoader
from headway.errors import RunDiffers, Stopped
from headway.model.own_adapter import uncalled_layers
from headway.parallel.seam import EngineState, StepResult
from headway.plan.schema import Plan
from headway.run.lock import stop_requested
from headway.run.paths import RunDir
from headway.run.record import read_record, write_record
from headway.run.summary import evaluation_at
from headway.task.seam import Batch
from headway.train import finish
from headway.train.actual import gather_actual
from headway.train.build import Given, Parts, build, documents, held_out, step_loader
from headway.train.context import RankContext
from headway.train.evaluation import held_out_figures
from headway.train.first_step import FirstStep, compare, plain_first_step
from headway.train.loop import Hooks, train
from headway.train.peak import matmul_flops
from headway.train.progress import Progress
from headway.train.reporter import Reporter, SilentReporter
from headway.train.tracking import start_tracker
from headway.train.verify import verify

_STATE_BYTES = 12  # a parameter in a checkpoint: fp32 weight and two moments, the most that an admitted optimizer has
_LOOK_SECONDS = 1.0  # how often rank 0 looks for a stop request on the disk


class Session:
    given = Given()

    def __init__(self, plan: Plan, run: RunDir, context: RankContext, device: torch.device):
        self.plan, self.run_dir, self.context, self.device = plan, run, context, device
        self.started = time.monotonic()
        self._looked = 0.0
        self._request: str | None = None
        self._evaluation: dict[str, float] = {}  # the newest held-out figures
        self._certificate: str | None = (read_record(run).get("certificate") or {}).get("id")
        self.reporter: Reporter | SilentReporter = SilentReporter()

    def run(self, signal_received: Callable[[], str | None]) -> None:
        """Train to the end, save, evaluate, export. Raises Stopped (saved) or RunDiffers (the weights are safe)."""
        parts = self._build()
        reporter = self.reporter
        loader = step_loader(parts)
        plain = self._plain_first_step(parts, loader)
        hooks = Hooks(
            first_step=lambda step, result: self._first_step(parts, plain, step, result),
            report=lambda report: reporter.step(report, parts.progress),
            evaluate=lambda step: self._evaluate(parts, step),
            save=lambda progress: self._save(parts, progress),
            stop_reason=lambda: signal_received() or self._asked_to_stop(),
            waited_seconds=lambda: loader.waited_seconds,
        )
        outcome = "failed"
        try:
            if self._is_judged_before(parts):
                self._evaluate(parts, 0)
            reason = train(self.plan, parts.engine, loader, parts.progress, hooks)
            self._account(parts)
            if reason is not None:
                outcome = "stopped"
                reporter.event("stopping", reason=reason, step=parts.progress.step)
                raise Stopped(f"stopped at step {parts.progress.step} and saved: {reason}")
            self._concluded(parts)
            differences = parts.progress.differences(self.plan)
            check = finish.deliver(parts, reporter, self._evaluation)
            if check is not None and check.verified:
                reporter.artifact("export", self.run_dir.export)
            done = {"tokens": parts.progress.tokens, "discarded": parts.progress.discarded}
            reporter.event("done", steps=parts.progress.step, differences=differences, **done)
            outcome = "done"
            if check is not None:
                check.require()
            if differences:
                raise RunDiffers("the run did not go as planned (the weights are safe): " + "; ".join(differences))
        finally:
            loader.close()
            reporter.close(outcome)

    def _build(self) -> Parts:
        if self.context.rank == 0:
            # Opened before the model is built, so that what the user waits for is named.
            weights: dict[str, float] = {}
            self.reporter = Reporter(self.run_dir, self.plan, self.device, weights)
            if not self.context.launched:  # else the launcher has said so
                self.reporter.event("started", resume=self.context.resume, strategy=self.plan.strategy.label)
            self.reporter.event("process_group", world=self.context.world, backend=self.plan.launch.backend)
            parts = build(self.plan, self.run_dir, self.context, self.given)
            weights |= {name: term.weight for name, term in parts.task.terms.items()}
            at = None if parts.resumed_from is None else parts.progress.step
            self.reporter.tracker = start_tracker(self.plan, self.run_dir, self.reporter, resumed_at=at)
        else:
            parts = build(self.plan, self.run_dir, self.context, self.given)
        if parts.reference is not None and parts.reference.note:
            self.reporter.event("notice", text=parts.reference.note)
        for notice in (*parts.notices, *self._verified(parts)):
            self.reporter.event("warning", text=notice)
        if parts.resumed_from:
            # A run that ended between its last save and its export has nothing left to evaluate.
            self._evaluation = evaluation_at(self.run_dir, parts.progress.step)
            self.reporter.event("resumed", checkpoint=parts.resumed_from, step=parts.progress.step)
        self.reporter.event("engine_ready", seconds=time.monotonic() - self.started)
        return parts

    def _verified(self, parts: Parts) -> list[str]:
        """Warnings of what the built engine shows; a contradiction stops the run. Certify measures it by a claim."""
        return verify(parts.engine, self.plan)

    def _is_judged_before(self, parts: Parts) -> bool:
        """Whether a pretrained model's held-out figures are taken before its first step: what training improves on.

        A head that starts fresh knows nothing yet, nor does a model from scratch.
        """
        plan = self.plan
        pretrained = plan.model.path is not None and not plan.model.fresh_head
        evaluates = plan.evaluate.steps is not None or plan.evaluate.seconds is not None
        return pretrained and evaluates and parts.progress.step == 0

    def _concluded(self, parts: Parts) -> None:
        """After the last step, before the export; collective. Certify's session looks at the engine here."""

    def _plain_first_step(self, parts: Parts, loader: StepLoader[Batch]) -> FirstStep | None:
        """Of a run that begins under a certificate; None for others."""
        if self._certificate is None or parts.progress.step > 0:
            return None
        return plain_first_step(parts, loader.micro_batches(1))

    def _first_step(self, parts: Parts, plain: FirstStep | None, step: int, result: StepResult) -> None:
        self.reporter.event("first_step", step=step, seconds=time.monotonic() - self.started)
        if plain is not None and plain.skipped:
            self._note_comparison({"skipped": plain.skipped})
        elif plain is not None:
            comparison = compare(plain, result, parts)
            self._note_comparison(comparison.fields())
            comparison.require()
        if silent := uncalled_layers(parts.engine.module):
            text = (
                f"the module has not called {len(silent)} layers that the adapter stands beside, so it has no effect "
            )
            self.reporter.event("warning", text=f"{text}there: {', '.join(silent[:5])}; see adapter.targets")
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[self.plan.numerics.precision]
        self.reporter.peak_flops = matmul_flops(self.device, dtype)

    def _account(self, parts: Parts) -> None:
        """What this attempt took, beside what the plan said; collective."""
        actual = gather_actual(parts.engine, self.run_dir, time.monotonic() - self.started)
        self._note(actual=actual)

    def _note(self, **fields: Any) -> None:
        """Add to the record, if there is one; a full disk costs the note, not the run."""
        if self.context.rank == 0 and self.run_dir.record.is_file():
            with suppress(OSError):
                write_record(self.run_dir, {**read_record(self.run_dir), **fields})

    def _note_comparison(self, fields: dict[str, Any]) -> None:
        self.reporter.event("first_step_compared", **fields)
        self._note(first_step=fields)

    def _asked_to_stop(self) -> str | None:
        """Rank 0's view of the disk and the clock; other ranks hear of it in the step's exchange."""
        if self.context.rank != 0:
            return None
        now = time.monotonic()
        limit = self.plan.stop_after_seconds
        if limit is not None and now - self.started >= limit:
            return f"train.stop_after: {limit:.0f} s are over"
        if now - self._looked >= _LOOK_SECONDS:
            self._looked, self._request = now, stop_requested(self.run_dir)
        return self._request

    def _evaluate(self, parts: Parts, step: int) -> None:
        if self.plan.facts.eval_windows == 0:
            return
        started = time.monotonic()
        totals = parts.engine.evaluate(held_out(parts))
        figures = held_out_figures(self.plan, parts.task, totals)
        self._evaluation = figures
        self.reporter.event("evaluation", step=step, seconds=time.monotonic() - started, **figures)

    def _save(self, parts: Parts, progress: Progress) -> None:
        state: EngineState = parts.engine.state()
        training = TrainingState(
            step=progress.step,
            position=progress.position,
            tokens=progress.tokens,
            scalars=state.scalars,
            counters=progress.counters(),
            plan_digest=self.plan.digest(),
            certificate=self._certificate,
        )
        job = SaveJob(
            state=training,
            slices=state.slices,
            random_state=capture_random_state(self.device),
            keep=self.plan.checkpoint.keep,
            expected_bytes=_STATE_BYTES * stored_parameters(self.plan),
            protect=frozenset([parts.resumed_from] if parts.resumed_from else []),
            documents=documents(parts),
        )
        saved = save_checkpoint(parts.store, job, parts.ranks)
        fields: dict[str, Any] = {"step": saved.step, "seconds": saved.seconds, "bytes": saved.size_bytes}
        if tokens := parts.sources.at(progress.position):
            fields["sources"] = tokens
        self.reporter.event("checkpoint", path=f"checkpoints/{saved.name}", **fields)
        for notice in saved.notices:
            self.reporter.event("warning", text=notice)


def stored_parameters(plan: Plan) -> int:
    """How many parameters a checkpoint holds: all, or an adapter's."""
    return plan.shape.trainable_parameters if plan.adapter else plan.shape.parameters
