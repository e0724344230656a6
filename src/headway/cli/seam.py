"""What the commands and the composition root hand each other: a screen that is told, and results that are shown.

`headway.api` calls a Screen and returns these records; nothing here imports torch, pydantic or rich.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

if TYPE_CHECKING:
    from headway.data.seam import ProgressReporter
    from headway.plan.schema import Plan
    from headway.run.summary import RunSummary

Record = Mapping[str, Any]  # one line of metrics.jsonl or events.jsonl
State = Literal["new", "running", "done", "stopped", "failed"]


class Verdict(Protocol):
    """One check's finding."""

    @property
    def name(self) -> str: ...
    @property
    def finding(self) -> str: ...
    @property
    def fix(self) -> str: ...
    @property
    def evidence(self) -> str: ...
    @property
    def level(self) -> Literal["red", "yellow", "note", "green"]: ...


class Report(Protocol):
    """All findings, in the order of the checks."""

    @property
    def verdicts(self) -> Sequence[Verdict]: ...


class Planned(Protocol):
    """A plan with the findings on it."""

    @property
    def plan(self) -> Plan: ...
    @property
    def report(self) -> Report: ...


@dataclass(frozen=True)
class Outcome:
    """How a run ended. `differences`: what was not as planned, in words; `remarks`: anything else worth a line."""

    run_dir: Path
    state: State
    step: int
    tokens: int
    seconds: float
    export: Path | None = None
    differences: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """Two runs; `differences` are the plan's keys whose values differ: (key, value in a, value in b)."""

    a: RunSummary
    b: RunSummary
    differences: tuple[tuple[str, Any, Any], ...] = ()


@dataclass(frozen=True)
class ExportResult:
    """A model folder; `max_difference` between its logits and the engine's, or what was `compared`.

    `notices` name newer checkpoints that were damaged and therefore not exported.
    """

    path: Path
    step: int
    verified: bool
    max_difference: float | None = None
    bytes: int = 0
    notices: tuple[str, ...] = ()
    compared: str = "plain transformers gives the same logits"


class Screen(Protocol):
    """Where a run is shown. Methods return at once and never raise for a value that they do not know."""

    def plan(self, planned: Planned) -> None:
        """Show the plan; later calls know its steps, tokens and memory from here."""
        ...

    def checks(self, report: Report) -> None: ...

    def event(self, event: Record) -> None:
        """One line of events.jsonl."""
        ...

    def metrics(self, metrics: Record) -> None:
        """One line of metrics.jsonl."""
        ...

    def finish(self, outcome: Outcome) -> None:
        """The closing summary. Called once, last; also after a failure."""
        ...


class RunScreen(Screen):
    """A Screen that can also be attached to a run that has begun, and that is left by `with`."""

    def attach(self, plan: Plan) -> None:
        """Know the plan without showing it."""

    def waiting(self, text: str) -> None:
        """Say what is being waited for, until anything else is shown."""

    def progress(self, title: str) -> ProgressReporter:
        """A display of long work before the ranks start."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass
