"""Looking at runs: following one, comparing two."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from headway.api.differing import differences
from headway.api.running import Feed
from headway.cli.seam import Comparison, Screen
from headway.diagnose.judge import Diagnosis, diagnose_run
from headway.plan.files import read_plan
from headway.run.paths import RunDir
from headway.run.summary import is_running, summarise

_POLL_SECONDS = 0.25


def compare(a: Path, b: Path) -> Comparison:
    left, right = RunDir(a), RunDir(b)
    return Comparison(
        summarise(left), summarise(right), tuple(differences(read_plan(left.plan), read_plan(right.plan)))
    )


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
        from headway.api.relieving import relief

        fix = relief(run, host=found.name != "cuda-out-of-memory")
        found = replace(found, fix=f"headway train {fix}" if fix else found.fix)
    return found


def follow(path: Path, screen: Screen) -> None:
    """Feed the screen from the run's first line until it has ended."""
    run = RunDir(path)
    feed = Feed(run, screen, from_start=True)
    while True:
        running = is_running(run)
        feed.poll()
        if not running:
            return
        time.sleep(_POLL_SECONDS)
