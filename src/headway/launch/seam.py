"""How ranks are started. A launcher renders exactly what it will send; submit sends exactly what render printed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from headway.plan.schema import LaunchPlan


@dataclass(frozen=True)
class JobSpec:
    """One job: the run directory holds plan.json, which is the worker's only input."""

    run_dir: Path
    launch: LaunchPlan
    environment: dict[str, str] = field(default_factory=dict[str, str])
    resume: bool = False


@dataclass(frozen=True)
class RankFailure:
    """The first rank that failed, and its own words."""

    rank: int
    exit_code: int  # negative: ended by that signal
    error: str
    log: Path


@dataclass(frozen=True)
class JobStatus:
    state: Literal["running", "done", "failed", "stopped"]
    exit_code: int | None = None
    failure: RankFailure | None = None


class Launcher(Protocol):
    def render(self, job: JobSpec) -> str:
        """The exact commands, scripts or manifests, as text."""
        ...

    def submit(self, job: JobSpec) -> str:
        """Start it; returns the job's id."""
        ...

    def status(self, job_id: str) -> JobStatus: ...

    def logs(self, job_id: str) -> list[Path]: ...

    def stop(self, job_id: str) -> None:
        """Ask the ranks to save and end; end them after a grace period."""
        ...
