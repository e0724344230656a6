"""What went wrong in a run: from its record and logs to one diagnosis, with the planner's word where memory ran out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from headway.api.relieving import relief
from headway.diagnose.judge import Diagnosis, diagnose_run
from headway.run.paths import RunDir
from headway.run.summary import summarise


def diagnose(path: Path) -> Diagnosis | None:
    """What went wrong in a run that failed or crashed; None of any other, and where nothing names an error.

    The launcher's word on which rank failed first comes before the logs. Where memory ran out, the fix is the planner's
    next setting of this run that needs clearly less.
    """
    run = RunDir(path)
    summary = summarise(run)
    if summary.state not in ("failed", "crashed"):
        return None
    failed = next((line for line in reversed(summary.events) if line.get("event") == "failed"), {})
    rank = failed.get("rank")
    found = diagnose_run(summary.failure, rank if isinstance(rank, int) else None, summary.logs)
    if found is not None and found.name in ("cuda-out-of-memory", "host-out-of-memory", "killed"):
        fix = relief(run, host=found.name != "cuda-out-of-memory")
        if fix and found.name == "killed":
            found = replace(found, fix=f"dmesg -T | grep -i 'killed process'; if it was memory: headway train {fix}")
        elif fix:
            found = replace(found, fix=f"headway train {fix}")
    return found
