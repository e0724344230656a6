"""Forward passes beside the training steps: over the held-out data, and of a preference's reference over all pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headway.plan.schema import Plan
from headway.plan.tasks import REFERENCE_BYTES


@dataclass(frozen=True)
class Passes:
    """All passes of one kind in the run. name: what for; words: of what, for people."""

    name: str
    seconds: float
    words: str


def passes_of(plan: Plan, forward_seconds: float, step_seconds: float) -> tuple[Passes, ...]:
    """forward_seconds: of one micro batch on every device at once; step_seconds: of a training step.

    Each rank takes its share of the windows in micro batches, all equally many.
    """

    def over(windows: int) -> float:
        return math.ceil(windows / (plan.batch.micro_batch * plan.batch.data_parallel_size)) * forward_seconds

    found: list[Passes] = []
    facts, times = plan.facts, evaluations(plan, step_seconds)
    if times and facts.eval_windows:
        found.append(Passes("evaluation", times * over(facts.eval_windows), f"{times} x {facts.eval_windows} windows"))
    if pairs := reference_pairs(plan):
        said = f"once over {pairs} pairs, unless it is kept from an earlier run on the same data and weights"
        found.append(Passes("reference", over(pairs), said))
    return tuple(found)


def evaluations(plan: Plan, step_seconds: float) -> int:
    """How often the run evaluates: at its interval, after the last step, and before the first of a pretrained model."""
    every, steps = plan.evaluate, plan.schedule.steps
    if every.steps is None and every.seconds is None:
        return 0
    first = 1 if plan.model.kind == "pretrained" else 0
    return first + math.ceil(steps / every.steps if every.steps else steps * step_seconds / (every.seconds or math.inf))


def reference_pairs(plan: Plan) -> int:
    """Pairs whose answers the reference is asked of once, before the first step; 0 for any other task."""
    return plan.facts.train_windows + plan.facts.eval_windows if plan.task.kind == "preference" else 0


def reference_bytes(plan: Plan) -> int:
    """What the reference's answers take on the disk, beside the token store."""
    return REFERENCE_BYTES * reference_pairs(plan)
