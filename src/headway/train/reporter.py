"""What rank 0 writes down: metrics, events, trackers. The other ranks have one that does nothing."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from headway.plan.schema import Plan
from headway.plan.work import useful_flops_per_token
from headway.run.journal import Journal
from headway.run.paths import RunDir
from headway.track.fanout import FanOut
from headway.track.record import evaluation_values
from headway.train.loop import StepReport, mean_loss
from headway.train.peak import memory_bytes
from headway.train.progress import Progress


class SilentReporter:
    """Ranks other than 0."""

    peak_flops: float | None = None  # of one rank, measured after the first step

    def event(self, name: str, **fields: Any) -> None: ...

    def step(self, report: StepReport, progress: Progress) -> None: ...

    def artifact(self, name: str, path: Path) -> None: ...

    def close(self, outcome: str) -> None: ...


class Reporter(SilentReporter):
    """Rank 0: events, the trackers (metrics.jsonl is one, always), and a plain line in its own log.

    A disk without room for a line costs the line, not the run: whether the run can go on is for the checkpoint to say.
    """

    def __init__(self, run: RunDir, plan: Plan, device: torch.device, weights: dict[str, float]):
        self.plan, self.device, self.weights = plan, device, weights
        self.tracker = FanOut((), print)  # until the trackers start
        self._events = Journal(run.events)
        self._flops_per_token = useful_flops_per_token(plan.shape, plan.data.sequence)
        self._since = _Window()

    def event(self, name: str, **fields: Any) -> None:
        with suppress(OSError):
            self._events.event(name, **fields)
        if name == "evaluation":
            self.tracker.evaluation(fields["step"], evaluation_values(fields))
        if name in ("notice", "warning", "evaluation", "checkpoint", "export"):
            _say(f"{name} " + " ".join(f"{key}={value}" for key, value in fields.items()))

    def step(self, report: StepReport, progress: Progress) -> None:
        """Add a step; write a line every `log_every` steps and at the last."""
        if not report.result.applied and self.plan.numerics.precision != "fp16":  # whose loss scale is found so
            what = "its loss or its gradients are not finite"
            self.event("warning", text=f"step {report.step} is discarded, the weights stay as they were: {what}")
        window = self._since
        window.add(report)
        if report.step % self.plan.log_every and report.step != self.plan.schedule.steps:
            return
        line = self._line(report, progress, window)
        self.tracker.log(report.step, line)
        _say(
            f"step {report.step}/{self.plan.schedule.steps} loss {line['loss']:.4f} norm {line['grad_norm']:.3f}"
            f" lr {line['lr']:.3g} {line['tokens_per_second']:.0f} tokens/s"
        )
        self._since = _Window()

    def artifact(self, name: str, path: Path) -> None:
        self.tracker.artifact(name, path)

    def close(self, outcome: str) -> None:
        self.tracker.finish(outcome)
        self._events.close()

    def _line(self, report: StepReport, progress: Progress, window: _Window) -> dict[str, float]:
        result = report.result
        seconds = window.step_seconds + window.waited_seconds + window.overhead_seconds
        rate = window.tokens / seconds
        now, peak = memory_bytes(self.device)
        means = result.totals.means()
        line = {
            "loss": mean_loss(result.totals, self.weights),
            "grad_norm": result.grad_norm,
            "lr": result.lr,
            "tokens": progress.tokens,
            "tokens_per_second": rate,
            "step_seconds": window.step_seconds / window.steps,
            "data_wait_seconds": window.waited_seconds / window.steps,
            "overhead_seconds": window.overhead_seconds / window.steps,
            "memory_bytes": now,
            "memory_peak_bytes": peak,
            "applied": result.applied,
        }
        if self.peak_flops:
            line["mfu"] = rate * self._flops_per_token / (self.peak_flops * self.plan.launch.processes)
        if result.loss_scale != 1.0:
            line["loss_scale"] = result.loss_scale
        if len(means) > 1:
            line |= {f"term.{name}": mean for name, mean in means.items()}
        return line


def _say(text: str) -> None:
    with suppress(OSError):
        print(text, flush=True)


class _Window:
    """Sums since the last written line."""

    def __init__(self) -> None:
        self.steps, self.tokens = 0, 0
        self.step_seconds, self.waited_seconds, self.overhead_seconds = 0.0, 0.0, 0.0

    def add(self, report: StepReport) -> None:
        self.steps += 1
        self.tokens += report.result.tokens
        self.step_seconds += report.step_seconds
        self.waited_seconds += report.waited_seconds
        self.overhead_seconds += report.overhead_seconds
