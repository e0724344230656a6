"""Steps and learning rates, exact and known before the start. No scheduler state: a step's rate is a formula."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headway.config.schema import OptimizerConfig
from headway.errors import PlanError, Problem
from headway.plan.schema import SchedulePlan
from headway.units import Amount, format_count


def learning_rate(schedule: SchedulePlan, step: int) -> float:
    """The rate of the step-th update; steps count from 1.

    Linear warm-up that reaches the peak at step `warmup_steps`; then cosine or linear, reaching `min_lr` at the last
    step, or constant. Beyond the last step it stays there.

    Raises:
        ValueError: step is below 1.
    """
    if step < 1:
        raise ValueError(f"steps count from 1, not {step}")
    if step <= schedule.warmup_steps:
        return schedule.peak_lr * step / schedule.warmup_steps
    if schedule.kind == "constant":
        return schedule.peak_lr
    rest = schedule.steps - schedule.warmup_steps
    done = min(1.0, (step - schedule.warmup_steps) / rest) if rest > 0 else 1.0
    kept = 0.5 * (1.0 + math.cos(math.pi * done)) if schedule.kind == "cosine" else 1.0 - done
    return schedule.min_lr + (schedule.peak_lr - schedule.min_lr) * kept


def table(schedule: SchedulePlan) -> list[float]:
    """The rates of all steps, in order."""
    return [learning_rate(schedule, step) for step in range(1, schedule.steps + 1)]


@dataclass(frozen=True)
class Pace:
    """What one step reads, and how many windows the data has."""

    sequence: int
    global_sequences: int
    train_windows: int
    windows_estimated: bool = False

    @property
    def tokens_per_step(self) -> int:
        return self.sequence * self.global_sequences


def steps_of(length: Amount, pace: Pace) -> tuple[int, str]:
    """(steps that cover the length, reason).

    Raises:
        PlanError: an epoch of no data, or a part of a step.
    """
    if length.unit == "steps":
        if length.value != int(length.value):
            fix = f"train.length='{math.ceil(length.value)} steps'"
            raise PlanError(problems=[Problem("train.length", "must be a whole number of steps", str(length), fix)])
        return int(length.value), "train.length"
    if length.unit == "tokens":
        steps = math.ceil(length.value / pace.tokens_per_step)
        return steps, f"train.length: {format_count(length.value)} tokens / {pace.tokens_per_step} a step, rounded up"
    if length.unit == "sequences":
        steps = math.ceil(length.value / pace.global_sequences)
        return steps, f"train.length: {format_count(length.value)} sequences / {pace.global_sequences}, rounded up"
    windows = math.ceil(length.value * pace.train_windows)
    if windows < 1:
        fix = "check data.train, or give train.length in steps or tokens"
        raise PlanError(problems=[Problem("train.length", "an epoch of this data has no window", str(length), fix)])
    estimated = " (estimated: the token store is not built yet)" if pace.windows_estimated else ""
    steps = math.ceil(windows / pace.global_sequences)
    reason = (
        f"train.length: {length.value:g} epochs x {pace.train_windows} windows{estimated} / {pace.global_sequences}"
    )
    return steps, f"{reason}, rounded up"


def warmup_of(warmup: Amount, steps: int, pace: Pace) -> tuple[int, str]:
    """(warm-up steps, reason). Raises PlanError if the warm-up is longer than the run."""
    if warmup.unit == "share":
        count = max(1, math.floor(warmup.value * steps + 0.5)) if warmup.value > 0 else 0
        return count, f"optimizer.warmup: {warmup.value:.2%} of {steps} steps"
    if warmup.unit == "tokens":
        count = math.ceil(warmup.value / pace.tokens_per_step)
        reason = f"optimizer.warmup: {format_count(warmup.value)} tokens / {pace.tokens_per_step} a step, rounded up"
    else:
        count, reason = math.ceil(warmup.value), "optimizer.warmup"
    if count > steps:
        rule = f"{count} steps of warm-up do not fit a run of {steps} steps"
        raise PlanError(problems=[Problem("optimizer.warmup", rule, str(warmup), "optimizer.warmup=1%")])
    return count, reason


def make_schedule(optimizer: OptimizerConfig, length: Amount, pace: Pace) -> tuple[SchedulePlan, dict[str, str]]:
    """The run's schedule and the reasons of its derived values. Raises PlanError as its parts do."""
    steps, steps_reason = steps_of(length, pace)
    warmup, warmup_reason = warmup_of(optimizer.warmup, steps, pace)
    minimum = optimizer.lr if optimizer.schedule == "constant" else optimizer.lr * optimizer.min_lr_ratio
    plan = SchedulePlan(
        kind=optimizer.schedule,
        steps=steps,
        tokens=steps * pace.tokens_per_step,
        peak_lr=optimizer.lr,
        min_lr=minimum,
        warmup_steps=warmup,
    )
    reasons = {
        "schedule.steps": steps_reason,
        "schedule.tokens": f"{steps} steps x {pace.global_sequences} sequences x {pace.sequence} tokens",
        "schedule.warmup_steps": warmup_reason,
        "schedule.min_lr": f"optimizer.lr x optimizer.min_lr_ratio ({optimizer.min_lr_ratio:g})"
        if optimizer.schedule != "constant"
        else "a constant schedule has no end rate",
    }
    return plan, reasons
