"""Going on from a checkpoint: with the same plan, or with a new one that says what it changed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headway.api import preparing, running
from headway.api.differing import differences
from headway.cli.seam import Screen
from headway.errors import CheckpointError, PlanError, Problem
from headway.plan.files import read_plan, write_plan
from headway.plan.schema import Plan
from headway.run.journal import Journal
from headway.run.paths import RunDir
from headway.run.record import read_record
from headway.run.summary import summarise

# What the checkpoint's state and the order of samples depend on. Everything else may change at a resume.
_FIXED = (
    "model.kind",
    "model.config",
    "model.path",
    "adapter",
    "task.",
    "data.store_hash",
    "data.sequence",
    "data.packing",
    "batch.global_sequences",
    "optimizer.kind",
    "numerics.seed",
)


def resume(path: Path, overrides: Sequence[str], *, screen: Screen, force: Sequence[str]) -> Path:
    """Resume the run in `path`.

    Raises:
        CheckpointError: nothing complete to go on from, or the run is complete.
        PlanError: the overrides change what the checkpoint depends on.
    """
    run = RunDir(path)
    plan = read_plan(run.plan)
    summary = summarise(run)
    if not any(checkpoint.complete for checkpoint in summary.checkpoints):
        raise CheckpointError(
            f"{run.name} has no complete checkpoint to resume from", fix="start it anew with `headway train`"
        )
    if summary.state == "done" and not overrides:
        fix = "a longer one: headway resume RUN train.length=..."
        raise CheckpointError(f"{run.name} is complete: {plan.schedule.steps} of {plan.schedule.steps} steps", fix=fix)
    if overrides:
        plan = _replan(run, plan, overrides, screen, force)
    return running.run_here(run, plan, screen, resume=True)


def _replan(run: RunDir, old: Plan, overrides: Sequence[str], screen: Screen, force: Sequence[str]) -> Plan:
    origin = read_record(run).get("run_file", {})
    path = Path(origin.get("path", run.config))
    loaded = preparing.reload(run, path, [*origin.get("overrides", ()), *overrides])
    new = preparing.plan_run(loaded, old.facts, old.name)
    report = preparing.check(new, loaded, run.path)
    planned = preparing.Planned(new, report, loaded)
    accepted = running.refuse_red(planned, force)
    changed = differences(old, accepted)
    # A folder may move: beside an adapter the hash of its weights says whether it is the same model.
    moved = old.adapter is not None and old.adapter.base != "" and old.adapter == accepted.adapter
    fixed = [(key, a, b) for key, a, b in changed if key.startswith(_FIXED) and not (moved and key == "model.path")]
    if fixed:
        fix = "start a new run for it: headway train"
        rule = "cannot change at a resume (it was {}): the checkpoint depends on it"
        raise PlanError(problems=[Problem(key, rule.format(a), b, fix) for key, a, b in fixed])
    _keep_old_plan(run)
    write_plan(accepted, run.plan)
    screen.plan(planned)
    screen.checks(report)
    with Journal(run.events) as events:
        for key, a, b in changed:
            events.event("notice", text=f"the plan changed at this resume: {key}: {a} -> {b}")
    return accepted


def _keep_old_plan(run: RunDir) -> None:
    number = 1
    while (kept := run.plan.with_name(f"plan-{number}.json")).exists():
        number += 1
    run.plan.replace(kept)
