"""What a screen knows of a run: fed with its events and metrics, asked for figures. No rich, no torch."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headway.cli.seam import Record
from headway.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from headway.plan.schema import Plan

# Enough steps to even out an evaluation or a save, few enough to follow a change of speed.
_RATE_WINDOW = 50

_PHASES = {
    "started": "starting the ranks",
    "preloaded": "connecting the ranks",
    "process_group": "building the model",
    "model_built": "building the engine",
    "engine_ready": "waiting for the first step",
    "first_step": "training",
    "stopping": "saving and stopping",
    "done": "done",
    "failed": "failed",
}


@dataclass(frozen=True)
class Figure:
    """One figure of the display: a name, and its value as text."""

    name: str
    value: str


@dataclass
class RunState:
    """`seconds` below are unix times as the run wrote them."""

    steps: int = 0  # planned
    planned_bytes: int = 0  # of one process
    phase: str = "starting"
    last: Mapping[str, Any] = field(default_factory=dict[str, Any])
    checkpoint_time: float | None = None
    checkpoint_step: int = 0
    started_time: float | None = None
    _recent: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_RATE_WINDOW))

    def take_plan(self, plan: Plan) -> None:
        from headway.plan.memory import used_bytes

        self.steps = plan.schedule.steps
        self.planned_bytes = used_bytes(plan.memory, plan.cluster)

    def take_event(self, event: Record) -> None:
        name = event.get("event")
        self.phase = _PHASES.get(str(name), self.phase)
        if name == "started":
            self._recent.clear()
            self.started_time = number(event, "time")
        elif name == "checkpoint":
            self.checkpoint_time = number(event, "time")
            self.checkpoint_step = int(number(event, "step") or 0)

    def take_metrics(self, metrics: Record) -> None:
        self.last = metrics
        time = number(metrics, "time")
        if time is not None:
            self._recent.append((self.step, time))
        self.phase = "training"

    @property
    def step(self) -> int:
        return int(number(self.last, "step") or 0)

    def eta_seconds(self, now: float) -> float | None:
        """Seconds to the last step at the speed of the last steps, evaluations and saves included."""
        if len(self._recent) < 2 or self.step >= self.steps:
            return None
        (first_step, first_time), (last_step, last_time) = self._recent[0], self._recent[-1]
        if last_step <= first_step or last_time <= first_time:
            return None
        left = (self.steps - last_step) * (last_time - first_time) / (last_step - first_step)
        return max(0.0, left - max(0.0, now - last_time))

    def figures(self, now: float) -> list[Figure]:
        """The display's figures in their order; those that are not known yet are left out."""
        return [Figure(name, value) for name, value in self._figures(now) if value]

    def _figures(self, now: float) -> list[tuple[str, str]]:
        last, eta = self.last, self.eta_seconds(now)
        return [
            ("loss", _decimal(number(last, "loss"), 4)),
            ("grad norm", _decimal(number(last, "grad_norm"), 3)),
            ("lr", f"{lr:.3g}" if (lr := number(last, "lr")) is not None else ""),
            ("tokens/s", _count(number(last, "tokens_per_second"))),
            ("MFU", _share(number(last, "mfu"))),
            ("waiting for data", _share(waiting_share(last))),
            ("memory", _memory(last, self.planned_bytes)),
            ("checkpoint", self._checkpoint(now)),
            ("ETA", format_seconds(eta) if eta is not None else ""),
        ]

    def _checkpoint(self, now: float) -> str:
        if self.checkpoint_time is None:
            return "none yet" if self.last else ""
        return f"step {self.checkpoint_step}, {format_seconds(max(0.0, now - self.checkpoint_time))} ago"


def number(record: Record, key: str) -> float | None:
    """A number of a record, or None where it is absent or none."""
    value = record.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def waiting_share(metrics: Record) -> float | None:
    """The part of a step spent waiting for data."""
    waited = number(metrics, "data_wait_seconds")
    parts = [number(metrics, key) or 0.0 for key in ("step_seconds", "data_wait_seconds", "overhead_seconds")]
    return waited / sum(parts) if waited is not None and sum(parts) > 0 else None


def _decimal(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:#.{digits}g}".removesuffix(".")


def _count(value: float | None) -> str:
    return format_count(value) if value is not None and math.isfinite(value) else ""


def _share(value: float | None) -> str:
    return f"{value:.1%}" if value is not None and math.isfinite(value) else ""


def _memory(metrics: Record, planned_bytes: int) -> str:
    now, peak = number(metrics, "memory_bytes"), number(metrics, "memory_peak_bytes")
    peak = max(now or 0.0, peak or 0.0)  # the two are measured in different ways and may cross by a page
    parts = [("now", now), ("peak", peak), ("planned", float(planned_bytes) if planned_bytes else None)]
    return ", ".join(f"{format_bytes(value)} {name}" for name, value in parts if value) if now else ""
