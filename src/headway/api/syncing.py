"""Sending to a run's trackers what they do not hold: after an outage, or from a machine that reaches them."""

from __future__ import annotations

from pathlib import Path

from headway.errors import HeadwayError, UserError
from headway.plan.files import read_plan
from headway.run.lock import JobLock
from headway.run.paths import RunDir
from headway.run.summary import RunSummary, summarise
from headway.track.fanout import LOCAL_RECORD, make_trackers

_OUTCOMES = {"done": "done", "stopped": "stopped"}  # of every other state: failed


def sync(path: Path) -> dict[str, str]:
    """Tracker -> what was done. Raises HeadwayError naming those that failed, UserError while the run runs."""
    run = RunDir(path)
    plan = read_plan(run.plan)
    summary = summarise(run)
    if summary.state == "running":
        raise UserError(f"{run.name} is running, and sends as it goes", fix="sync it when it has ended")
    if not plan.track:
        raise UserError(f"{run.name} has no trackers", fix="name some in `track` of the run file")
    warnings: list[str] = []
    with JobLock(run):
        tracker = make_trackers(plan.track, warnings.append)
        tracker.start(run.path, plan.name, plan.model_dump(mode="json"), resumed=True)
        sent = tracker.catch_up()
        if _verified(summary):
            tracker.artifact("export", run.export)
        tracker.finish(_OUTCOMES.get(summary.state, "failed"))
        done = {kind: f"{sent[kind]} lines sent" for kind in tracker.active if kind != LOCAL_RECORD}
        for asked in plan.track:
            if asked.kind == "wandb" and asked.options.get("mode") == "offline" and asked.kind in done:
                from headway.track.wandb import upload

                done[asked.kind] += f" to its offline files; {upload(run.path)}"
    if warnings:
        raise HeadwayError("\n".join(warnings))
    return done


def _verified(summary: RunSummary) -> bool:
    return bool((summary.export or {}).get("verified")) and (summary.path / "export" / "headway.json").is_file()
