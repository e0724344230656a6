"""Starts the trackers that the plan names; their later failures become warnings in the run's events."""

from __future__ import annotations

from headway.plan.schema import Plan
from headway.run.paths import RunDir
from headway.track.fanout import make_trackers
from headway.track.seam import Tracker
from headway.train.reporter import Reporter


def start_tracker(plan: Plan, run: RunDir, reporter: Reporter, *, resumed: bool) -> Tracker:
    """All trackers as one; the local record is always among them."""
    tracker = make_trackers(plan.track, warn=lambda text: reporter.event("warning", text=text))
    tracker.start(run.path, plan.name, plan.model_dump(mode="json"), resumed=resumed)
    return tracker
