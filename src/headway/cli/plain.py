"""A run as plain lines: for pipes, log files and `--plain`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

from headway.cli.lines import aligned, check_lines, event_lines, headline, step_line, what_next, where_things_are
from headway.cli.seam import Outcome, Planned, Record, Report, RunScreen
from headway.cli.state import RunState, number
from headway.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from headway.data.seam import ProgressReporter
    from headway.plan.schema import Plan

# A log file of a day's run stays readable, and a person who watches sees every second.
_LINE_SECONDS = 1.0
_PROGRESS_SECONDS = 5.0


class PlainScreen(RunScreen):
    """One line each: no colours, nothing rewritten. `clock` gives seconds and serves where a record has no time."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.time):
        self._stream = stream or sys.stdout
        self._clock = clock
        self._state = RunState()
        self._printed_at: float | None = None
        self._unprinted: Record | None = None

    def attach(self, plan: Plan) -> None:
        self._state.take_plan(plan)

    def plan(self, planned: Planned) -> None:
        from headway.plan.explain import note_texts, summary_rows

        self.attach(planned.plan)
        self._say("plan:", *(f"  {line}" for line in aligned(row[:2] for row in summary_rows(planned.plan))))
        self._say(*(f"note: {text}" for text in note_texts(planned.plan)))

    def checks(self, report: Report) -> None:
        self._say(*check_lines(report))

    def event(self, event: Record) -> None:
        self._state.take_event(event)
        lines = event_lines(event)
        if event.get("event") == "first_step":
            lines = [f"first step after {format_seconds(number(event, 'seconds') or 0.0)}"]
        if lines:
            self._flush()
            self._say(*lines)

    def metrics(self, metrics: Record) -> None:
        """Print the first line, then about one a second of the run's own time."""
        self._state.take_metrics(metrics)
        now = self._now(metrics)
        self._unprinted = metrics
        if self._printed_at is None or not 0 <= now - self._printed_at < _LINE_SECONDS:
            self._flush()

    def finish(self, outcome: Outcome) -> None:
        self._flush()
        self._say(*(f"NOT AS PLANNED: {text}" for text in outcome.differences))
        self._say(*outcome.remarks, headline(outcome))
        self._say(*(f"  {line}" for line in aligned(where_things_are(outcome))))
        self._say("next:", *(f"  {line}" for line in what_next(outcome)))

    def progress(self, title: str) -> ProgressReporter:
        return PlainProgress(title, self._say)

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # a pipe that was closed must not hide how the run ended
            self._flush()

    def _now(self, metrics: Record) -> float:
        time = number(metrics, "time")
        return self._clock() if time is None else time

    def _flush(self) -> None:
        """The newest step is always told before anything that follows it, and at the end."""
        if self._unprinted is not None:
            now = self._printed_at = self._now(self._unprinted)
            self._unprinted = None
            self._say(step_line(self._state.step, self._state.steps, self._state.figures(now)))

    def _say(self, *lines: str) -> None:
        for line in lines:
            self._stream.write(line + "\n")
        self._stream.flush()


class PlainProgress:
    """Progress as a line every few seconds."""

    def __init__(self, title: str, say: Callable[..., None], clock: Callable[[], float] = time.monotonic):
        self._title, self._say, self._clock = title, say, clock
        self._total = self._done = 0
        self._printed_at = clock()

    def start(self, total_bytes: int) -> None:
        self._total, self._done = total_bytes, 0
        self._printed_at = self._clock()
        self._say(f"{self._title}: {format_bytes(total_bytes)}")

    def advance(self, count: int) -> None:
        self._done += count
        now = self._clock()
        if now - self._printed_at >= _PROGRESS_SECONDS and self._total:
            self._printed_at = now
            self._say(f"{self._title}: {min(1.0, self._done / self._total):.0%}")

    def note(self, text: str) -> None:
        self._say(text)
