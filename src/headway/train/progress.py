"""Where training stands: small, plain, equal on all ranks, and all that a resume needs besides the engine's state."""

from __future__ import annotations

from dataclasses import dataclass

from headway.checkpoint.layout import TrainingState
from headway.parallel.seam import StepResult
from headway.plan.schedule import learning_rate
from headway.plan.schema import Plan


@dataclass
class Progress:
    """`position` counts samples consumed; the sample order is a function of it, so it is valid at any world size."""

    step: int = 0
    position: int = 0
    tokens: int = 0
    discarded: int = 0
    discards_in_a_row: int = 0
    lr_difference: float = 0.0  # largest |used - planned| so far

    def add(self, step: int, plan: Plan, result: StepResult) -> None:
        self.step = step
        self.position += plan.batch.global_sequences
        self.tokens += result.tokens
        self.discarded += not result.applied
        self.lr_difference = max(self.lr_difference, abs(result.lr - learning_rate(plan.schedule, step)))

    def counters(self) -> dict[str, float]:
        return {
            "discarded": self.discarded,
            "discards_in_a_row": self.discards_in_a_row,
            "lr_difference": self.lr_difference,
        }

    @staticmethod
    def from_state(state: TrainingState) -> Progress:
        counters = state.counters
        return Progress(
            step=state.step,
            position=state.position,
            tokens=state.tokens,
            discarded=int(counters.get("discarded", 0)),
            discards_in_a_row=int(counters.get("discards_in_a_row", 0)),
            lr_difference=float(counters.get("lr_difference", 0.0)),
        )

    def differences(self, plan: Plan) -> list[str]:
        """What the run did otherwise than planned, in words; empty when it did as planned.

        Where a source's documents end a window is short: tokens may fall below the plan by these windows, each epoch.
        """
        found: list[str] = []
        if self.step != plan.schedule.steps:
            found.append(f"steps: planned {plan.schedule.steps}, done {self.step}")
        samples = plan.schedule.steps * plan.batch.global_sequences
        if self.position != samples:
            found.append(f"samples: planned {samples}, read {self.position}")
        epochs = samples // max(plan.facts.train_windows, 1) + 1
        missing = plan.schedule.tokens - self.tokens
        if plan.fills_windows and not 0 <= missing <= epochs * plan.facts.short_windows * plan.data.sequence:
            found.append(f"tokens: planned {plan.schedule.tokens}, read {self.tokens}")
        if self.lr_difference > 0:
            found.append(f"learning rate: off the planned table by up to {self.lr_difference:.3g}")
        return found
