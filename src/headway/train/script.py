"""A run inside of a user's own script: the session's parts, with the loop's two halves in the script's hands."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import torch
from torch import nn

from headway.data.loader import StepLoader
from headway.errors import Problem, UserError
from headway.export.card import Provenance
from headway.export.compare import Comparison, own_losses, verify_own
from headway.export.verify import ExportCheck
from headway.parallel.seam import StepResult
from headway.plan.schema import Plan
from headway.run.paths import RunDir
from headway.task.seam import Batch, Task
from headway.train import finish
from headway.train.build import Given, Parts, step_loader
from headway.train.context import RankContext, leave
from headway.train.feeding import Feed, feed
from headway.train.given import GivenSource, GivenTask
from headway.train.loop import Hooks, Loop, mean_loss
from headway.train.progress import Progress
from headway.train.session import Session


@dataclass(frozen=True)
class Step:
    """What one optimizer step did, equal on all ranks. terms: each one's mean; grad_norm: before clipping."""

    step: int
    loss: float
    terms: dict[str, float]
    grad_norm: float
    lr: float
    applied: bool
    tokens: int


class ScriptEngine:
    """The engine as a script uses it: it knows the plan's learning rates, and writes down what it does."""

    def __init__(self, loop: Loop, task: Task):
        self._loop, self._task = loop, task
        self.model: nn.Module = loop.engine.model
        self.module: nn.Module = loop.engine.module
        self.device: torch.device = loop.engine.device

    def train_step(self, *micro_batches: Any) -> Step:
        """One optimizer step over what `run.batches()` yields, or over micro batches of the script's own, one each.

        Every rank gives its own micro batches, equally many. Raises UserError after the plan's last step, Diverged
        where losses stay non-finite.
        """
        steps, at = self._loop.plan.schedule.steps, self._loop.progress.step
        if at >= steps:
            rule = f"are over: the plan has {steps}"
            raise UserError(problems=[Problem("steps", rule, fix="a larger train.length")])
        result = self._loop.step(self._batches(micro_batches))
        return _told(at + 1, result, self._task)

    def evaluate(self, batches: Iterable[Any]) -> dict[str, float]:
        """Figures over all ranks' batches, each rank giving its own; under ZeRO-3 equally many on each."""
        return self._task.metrics(self._loop.engine.evaluate(map(self._batch, batches)))

    def _batches(self, given: Sequence[Any]) -> list[Batch]:
        if len(given) == 1 and isinstance(given[0], list) and all(isinstance(part, Batch) for part in given[0]):
            return given[0]
        if not given:
            raise UserError(problems=[Problem("train_step", "needs a micro batch")])
        return [self._batch(content) for content in given]

    def _batch(self, content: Any) -> Batch:
        if isinstance(content, Batch):
            return content
        if not isinstance(self._task, GivenTask):
            rule = "is neither from run.batches() nor a headway Batch, and the run file's task cannot read it"
            fix = "give prepare(..., loss=function), or leave data out of the run file"
            raise UserError(problems=[Problem("batch", rule, type(content).__name__, fix)])
        return self._task.batch(content)


def _told(step: int, result: StepResult, task: Task) -> Step:
    weights = {name: term.weight for name, term in task.terms.items()}
    loss = mean_loss(result.totals, weights) if result.totals.means() else math.nan
    means = result.totals.means()
    return Step(step, loss, means, result.grad_norm, result.lr, result.applied, result.tokens)


class ScriptSession(Session):
    """A session whose loop is the script's."""

    def __init__(self, plan: Plan, place: ScriptPlace, given: Given):
        super().__init__(plan, place.run, place.context, place.device)
        self.given = given
        self.saved_at = -1  # the step of the newest checkpoint

    def opened(self) -> Parts:
        return self._build()

    def hooks(self, parts: Parts, signal_received: Callable[[], str | None], waited: Callable[[], float]) -> Hooks:
        return Hooks(
            first_step=lambda step, result: self._first_step(parts, None, step, result),
            report=lambda report: self.reporter.step(report, parts.progress),
            evaluate=lambda step: self._evaluate(parts, step),
            save=lambda progress: self._save(parts, progress),
            stop_reason=lambda: signal_received() or self._asked_to_stop(),
            waited_seconds=waited,
        )

    def _save(self, parts: Parts, progress: Progress) -> None:
        super()._save(parts, progress)
        self.saved_at = progress.step

    def evaluated(self, step: int, figures: dict[str, float]) -> None:
        self._evaluation = figures
        self.reporter.event("evaluation", step=step, seconds=0.0, **figures)

    def deliver(self, parts: Parts) -> bool:
        """Export and conclude as a run of Headway's own does; whether all went as planned."""
        differences = parts.progress.differences(self.plan)
        check = finish.deliver(parts, self.reporter, self._evaluation)
        self.reporter.event("done", steps=parts.progress.step, tokens=parts.progress.tokens, differences=differences)
        if check is not None:
            check.require()
        return not differences


@dataclass(frozen=True)
class ScriptPlace:
    """Where a script's run takes place. joined: the process group was made for it, and goes with it."""

    run: RunDir
    context: RankContext
    device: torch.device
    joined: bool
    signal_received: Callable[[], str | None]
    held: ExitStack  # the run's lock and the signals, let go at the end


Outcome = Literal["done", "stopped", "unfinished"]


class ScriptRun:
    """What `headway.prepare` returns. Equal on every rank; methods are called by all ranks together.

    plan: every value concrete. path: the run directory. engine: see ScriptEngine. resumed_from: the checkpoint's name.
    stopped: why `batches()` ended before the last step, else None.
    """

    def __init__(self, plan: Plan, place: ScriptPlace, given: Given):
        self.plan, self.path = plan, place.run.path
        self._place, self._session = place, ScriptSession(plan, place, given)
        self._feed: Feed | StepLoader[Batch] | None = None
        self._parts = self._session.opened()
        hooks = self._session.hooks(self._parts, place.signal_received, self._waited)
        self._loop = Loop(plan, self._parts.engine, self._parts.progress, hooks)
        if self._parts.resumed_from:
            self._session.saved_at = self._parts.progress.step
        self.engine = ScriptEngine(self._loop, self._parts.task)
        self.resumed_from, self.stopped = self._parts.resumed_from, None
        self._closed = False

    @property
    def step(self) -> int:
        """Optimizer steps done so far."""
        return self._parts.progress.step

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.plan.schedule.steps

    @property
    def rank(self) -> int:
        return self._place.context.rank

    @property
    def world(self) -> int:
        return self._place.context.world

    def batches(self, source: Any = None, collate: Callable[[list[Any]], Any] | None = None) -> Iterator[list[Batch]]:
        """Each step's micro batches of this rank, from where the run stands to its last step.

        source: None: the run file's data. A dataset with a length and items by number: read in Headway's order, the
        same at any number of ranks. A loader: read again up to where the run stands. Between two steps it evaluates,
        saves and stops as the run file says. Raises UserError where the loop makes no step of a batch.
        """
        feeding = self._feed = self._fed(source, collate)
        try:
            for micro_batches in feeding:
                before = self.step
                yield micro_batches
                if self.step != before + 1:
                    rule = f"made {self.step - before} steps of one item of run.batches(); it is one step's"
                    raise UserError(problems=[Problem("loop", rule, fix="run.engine.train_step(batches), once each")])
                reason = self._loop.settle()
                if reason is not None:
                    self.stopped = reason
                    self._session.reporter.event("stopping", reason=reason, step=self.step)
                    return
        finally:
            if isinstance(feeding, StepLoader):
                feeding.close()

    def _fed(self, source: Any, collate: Callable[[list[Any]], Any] | None) -> Feed | StepLoader[Batch]:
        task = self._parts.task
        if source is None:
            if self.plan.facts.layout == "given":
                fix = "give run.batches(dataset) or run.batches(loader), or write data into the run file"
                raise UserError(problems=[Problem("batches", "the run file names no data", fix=fix)])
            return step_loader(self._parts)
        if not isinstance(task, GivenTask):
            fix = "give prepare(..., loss=function), or call run.batches() for the run file's data"
            rule = f"the task of the run file, {self.plan.task.kind}, cannot read batches of the script's own"
            raise UserError(problems=[Problem("batches", rule, fix=fix)])
        return feed(source, collate, self.plan, self.step, task.batch)

    def _waited(self) -> float:
        return self._feed.waited_seconds if self._feed is not None else 0.0

    def save(self) -> None:
        """A checkpoint of this moment, unless this step has one."""
        if self._session.saved_at != self.step:
            self._loop.save()

    def evaluate(self, batches: Iterable[Any]) -> dict[str, float]:
        """Figures over all ranks' batches, written down as those of this step."""
        figures = self.engine.evaluate(batches)
        self._session.evaluated(self.step, figures)
        return figures

    def export(self) -> Path:
        """The model folder as it is now, compared with the module; its path. Raises ExportError."""
        check = finish.deliver(self._exporting(), self._session.reporter, self._session._evaluation)
        if check is not None:
            check.require()
        return self._place.run.export

    def _exporting(self) -> Parts:
        self._parts.plan = self.plan.model_copy(update={"export": self.plan.export.model_copy(update={"at_end": True})})
        return self._parts

    def finish(self) -> Outcome:
        """End the run: save, and after the last step export as the run file says. How it ended; called once, last.

        Raises ExportError where the folder is not the model; the checkpoints are safe.
        """
        if self._closed:
            return "done" if self.step == self.steps else "unfinished"
        outcome: Outcome = "stopped" if self.stopped else "done" if self.step == self.steps else "unfinished"
        try:
            self.save()
            if outcome == "done":
                self._session.deliver(self._parts)
        finally:
            self._close("done" if outcome == "done" else "stopped")
        return outcome

    def _close(self, outcome: str) -> None:
        self._closed = True
        self._session.reporter.close(outcome)
        self._place.held.close()
        if self._place.joined:
            leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
        elif not self._closed:
            self._session.reporter.event("failed", rank=self.rank, error=str(error) or type(error).__name__)
            self._closed = True
            self._session.reporter.close("failed")
            self._place.held.close()  # the group stays: peers may wait in it for this rank


def given_comparison(source: GivenSource, task: Task, plan: Plan) -> Comparison:
    """An export of the script's module beside the module, on the last batch that it saw; without one, by its values."""

    def measure(model: nn.Module) -> torch.Tensor:
        return own_losses(model, task, plan) if _can_probe(task) else torch.zeros(1)

    def verify(folder: Path, reference: torch.Tensor, provenance: Provenance) -> ExportCheck:
        return verify_own(folder, task, reference, provenance, source.reload if _can_probe(task) else lambda _: None)

    return Comparison(measure, verify)


def _can_probe(task: Task) -> bool:
    return not isinstance(task, GivenTask) or task.last is not None
