"""THE loop. In order: read a step's samples, step, report, evaluate, save, and stop where it is told to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from headway.parallel.collectives import sum_over_ranks
from headway.parallel.seam import Engine, StepResult
from headway.plan.schedule import learning_rate
from headway.plan.schema import IntervalPlan, Plan
from headway.task.seam import Batch, Totals
from headway.train.health import Guard
from headway.train.progress import Progress


@dataclass
class StepReport:
    """One step, as the reporter sees it; times in seconds."""

    step: int
    result: StepResult
    step_seconds: float
    waited_seconds: float  # for data
    overhead_seconds: float  # since the last step's end: what was neither the step, the data, evaluation nor saving


@dataclass
class Hooks:
    """What the loop calls; rank 0's do the reporting, the others' do nothing. Collective ones are called by all."""

    first_step: Callable[[int, StepResult], None]  # after the first step of this process; collective
    report: Callable[[StepReport], None]
    evaluate: Callable[[int], None]  # collective
    save: Callable[[Progress], None]  # collective
    stop_reason: Callable[[], str | None]  # this rank's view: a signal, a request, the time limit
    waited_seconds: Callable[[], float]


@dataclass
class Timer:
    """Does an interval have its turn? Steps are counted; of seconds, the first rank whose clock says so decides."""

    interval: IntervalPlan
    last: float = field(default_factory=time.monotonic)

    def due_by_step(self, step: int) -> bool:
        return self.interval.steps is not None and step % self.interval.steps == 0

    def due_by_time(self) -> bool:
        return self.interval.seconds is not None and time.monotonic() - self.last >= self.interval.seconds

    def reset(self) -> None:
        self.last = time.monotonic()


class Loop:
    """The loop's body in two halves, so that a user's own loop does what Headway's does.

    Raises Diverged (see health); errors of the engine and the data pass through.
    """

    def __init__(self, plan: Plan, engine: Engine, progress: Progress, hooks: Hooks):
        self.plan, self.engine, self.progress, self.hooks = plan, engine, progress, hooks
        self._guard = Guard(progress.discards_in_a_row)
        self._saving, self._evaluating = Timer(plan.checkpoint.every), Timer(plan.evaluate)
        self._waited_before = hooks.waited_seconds()
        self._ended = time.perf_counter()
        self._first = progress.step + 1

    def step(self, micro_batches: Sequence[Batch]) -> StepResult:
        """One optimizer step, reported; collective."""
        progress, hooks, step = self.progress, self.hooks, self.progress.step + 1
        started = time.perf_counter()
        result = self.engine.train_step(micro_batches, learning_rate(self.plan.schedule, step), self._guard)
        stepped = time.perf_counter()
        step_seconds = stepped - started
        progress.add(step, self.plan, result)
        if step == self._first:
            hooks.first_step(step, result)
            stepped = time.perf_counter()
        waited = hooks.waited_seconds() - self._waited_before
        hooks.report(StepReport(step, result, step_seconds, waited, started - self._ended - waited))
        self._guard.after(step, result.applied)
        progress.discards_in_a_row = self._guard.discards_in_a_row
        self._waited_before, self._ended = hooks.waited_seconds(), stepped
        return result

    def settle(self) -> str | None:
        """Between two steps: evaluate and save where it is their turn; why to stop, or None. Collective."""
        plan, hooks, step = self.plan, self.hooks, self.progress.step
        reason = hooks.stop_reason()
        asked = sum_over_ranks(
            {
                "stop": float(reason is not None),
                "save": self._saving.due_by_time(),
                "eval": self._evaluating.due_by_time(),
            },
            self.engine.device,
        )
        last = step == plan.schedule.steps
        stop = asked["stop"] > 0 and not last
        if self._evaluating.due_by_step(step) or asked["eval"] or last:
            hooks.evaluate(step)
            self._evaluating.reset()
            self._ended = time.perf_counter()
        if stop or self._saving.due_by_step(step) or asked["save"] or (last and plan.checkpoint.at_end):
            self.save()
        return (reason or "another rank was asked to stop") if stop else None

    def save(self) -> None:
        self.hooks.save(self.progress)
        self._saving.reset()
        self._ended = time.perf_counter()


def train(plan: Plan, engine: Engine, steps: Iterable[list[Batch]], progress: Progress, hooks: Hooks) -> str | None:
    """Run from `progress` to the plan's last step. Returns None at the end, or why it stopped before."""
    loop = Loop(plan, engine, progress, hooks)
    for micro_batches in steps:
        loop.step(micro_batches)
        reason = loop.settle()
        if reason is not None:
            return reason
    return None


def mean_loss(totals: Totals, weights: dict[str, float]) -> float:
    """The loss as it is minimised: the weighted sum of the terms' means."""
    return sum(weights[name] * mean for name, mean in totals.means().items())
