"""What a check looks at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headway.check.report import Verdict
from headway.config.load import LoadedRun
from headway.plan.schema import Plan


@dataclass(frozen=True)
class Subject:
    """The plan, the run file that it came from (None where only a plan is left), and the folder that it will write."""

    plan: Plan
    run: LoadedRun | None
    run_dir: Path


# name of the check, subject -> verdict
Check = Callable[[str, Subject], Verdict]
