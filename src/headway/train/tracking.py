"""Starts the trackers that the plan names; their later failures become warnings in the run's events."""

from __future__ import annotations

from headway.plan.schema import Plan
from headway.run.paths import RunDir
from headway.track.fanout import FanOut, make_trackers
from headway.train.reporter import Reporter


def start_tracker(plan: Plan, run: RunDir, reporter: Reporter, *, resumed_at: int | None) -> FanOut:
    """All trackers as one; the local record is always among them. After a resume, first what they lack up to there."""
    tracker = make_trackers(
        plan.track,
        warn=lambda text: reporter.event("warning", text=text),
        tell=lambda text: reporter.event("notice", text=text),
    )
    tracker.start(run.path, plan.name, plan.model_dump(mode="json"), resumed=resumed_at is not None)
    if resumed_at is not None:
        tracker.catch_up(resumed_at)
    return tracker
