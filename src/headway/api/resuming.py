"""Going on from a checkpoint: with the same plan, or with a new one that says what it changed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel

from headway.api import preparing, running
from headway.api.differing import differences
from headway.check.checks import CHECKS, require_checks, run_checks
from headway.check.report import Report
from headway.cli.seam import Screen
from headway.config.load import LoadedRun
from headway.errors import CheckpointError, PlanError, Problem
from headway.plan.files import read_plan, write_plan
from headway.plan.live import LIVE_FINDINGS
from headway.plan.schema import Plan
from headway.run.journal import Journal
from headway.run.lock import JobLock
from headway.run.paths import RunDir
from headway.run.record import describe_plan, read_record, write_record
from headway.run.summary import summarise

# What the checkpoint's state and the order of samples depend on. Everything else may change at a resume.
_FIXED = (
    "model.kind",
    "model.config",
    "model.path",
    "model.options",
    "adapter",
    "model.tokenizer",
    "task.",
    "data.",
    "batch.global_sequences",
    "optimizer.kind",
    "numerics.seed",
)
# What the plan takes from elsewhere, and may have gone since.
_STILL_THERE = {name: CHECKS[name] for name in ("data", "model")}


def resume(path: Path, overrides: Sequence[str], *, screen: Screen, force: Sequence[str]) -> Path:
    """Resume the run in `path`.

    Raises:
        CheckpointError: nothing complete to go on from, or the run is complete.
        PlanError: the overrides change what the checkpoint depends on, or end the run before where it stands.
        CheckFailed: the data or the model is not there any more, or a red finding of a new plan.
        UserError: the run is still running.
    """
    require_checks(force)
    run = RunDir(path)
    plan = read_plan(run.plan)
    summary = summarise(run)
    reached = [checkpoint.step for checkpoint in summary.checkpoints if checkpoint.complete]
    with JobLock(run):  # before anything is changed: a run that goes on must not find another plan
        if not reached:
            raise CheckpointError(
                f"{run.name} has no complete checkpoint to resume from", fix="start it anew with `headway train`"
            )
        if summary.state == "done" and not overrides:
            what = f"{run.name} is complete: {plan.schedule.steps} of {plan.schedule.steps} steps"
            raise CheckpointError(what, fix=f"to train it longer: headway resume {run.name} train.length=...")
        if overrides:
            plan = _replan(run, plan, reached[-1], _Asked(overrides, force), screen)
        else:
            report = run_checks(plan, None, run.path, checks=_STILL_THERE)
            report.forced([*plan.forced, *force]).raise_if_red()
            plan = _with_forced(run, plan, _passed(report, force), screen)
        return running.run_here(run, plan, screen, resume=True)


def _passed(report: Report, force: Sequence[str]) -> list[str]:
    """Of the names given, those of a finding that is red now, and those of findings that the ranks look for."""
    red = {verdict.name for verdict in report.reds}
    return [name for name in dict.fromkeys(force) if name in red or name in LIVE_FINDINGS]


def _with_forced(run: RunDir, plan: Plan, names: Sequence[str], screen: Screen) -> Plan:
    """The plan with more findings passed: the ranks read it, and the record tells of it."""
    new = tuple(name for name in names if name not in plan.forced)
    if not new:
        return plan
    changed = plan.model_copy(update={"forced": (*plan.forced, *new)})
    keep_old_plan(run)
    write_plan(changed, run.plan)
    write_record(run, {"git": {}, **read_record(run), "plan": describe_plan(changed)})
    _say(run, screen, f"passed by --force at this resume: {', '.join(new)}")
    return changed


def _say(run: RunDir, screen: Screen, *texts: str) -> None:
    with Journal(run.events) as events:
        for text in texts:
            events.event("notice", text=text)
            screen.event({"event": "notice", "text": text})  # what is followed begins with the ranks


@dataclass(frozen=True)
class _Asked:
    """What the user changes at this resume."""

    overrides: Sequence[str]
    force: Sequence[str]


def _replan(run: RunDir, old: Plan, reached: int, asked: _Asked, screen: Screen) -> Plan:
    """The plan with these overrides beside those of the start and of earlier resumes, put in the old one's place."""
    record = read_record(run)
    origin = record.get("run_file", {})
    path = Path(origin.get("path", run.config))
    before = preparing.reload(run, path, origin.get("overrides", ()))
    loaded = preparing.reload(run, path, before.overrides, asked.overrides)
    made = preparing.plan_run(loaded, old.facts, old.name)
    made = made.model_copy(update={"code": old.code})  # the run goes on with its own copy of the user's modules
    planned = preparing.judged(made, loaded, run.path, [*old.forced, *asked.force])
    changed = differences(old, planned.plan)
    # A folder may move: beside an adapter the hash of its weights says whether it is the same model.
    moved = old.adapter is not None and old.adapter.base != "" and old.adapter == planned.plan.adapter
    kept = [change for change in changed if not (moved and change[0] == "model.path")]
    require_resumable([*_other_data(before, loaded), *kept], planned.plan, reached)
    screen.plan(planned)
    screen.checks(planned.report)
    planned.report.raise_if_red()
    certificate = running.look_for_certificate(planned, screen)
    keep_old_plan(run)
    running.keep_words(run, loaded)
    write_plan(planned.plan, run.plan)
    write_record(run, {"git": {}, **record, **running.origin_of(planned, certificate)})
    passed = [name for name in planned.plan.forced if name not in old.forced]
    notes = [f"the plan changed at this resume: {key}: {a} -> {b}" for key, a, b in changed]
    notes += [f"passed by --force at this resume: {', '.join(passed)}"] if passed else []
    _say(run, screen, *notes)
    return planned.plan


def _other_data(before: LoadedRun, loaded: LoadedRun) -> Iterator[tuple[str, Any, Any]]:
    """(key, before, now) of what the token store was made from, which is not made again for a resume."""
    for key in ("data.train", "data.more", "data.eval", "model.tokenizer"):
        section, name = key.split(".")
        old, new = (getattr(getattr(run.config, section), name) for run in (before, loaded))
        if old != new:
            yield key, _written(old), _written(new)


def _written(value: Any) -> Any:
    """A section by what was said in it."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return [_written(item) for item in cast("tuple[Any, ...]", value)] if isinstance(value, tuple) else value


def _other_base(new: Plan) -> Problem:
    rule = "holds other weights than those that the adapter was trained beside: it would be one for another base model"
    return Problem("model.from", rule, new.model.path, "restore the folder, or start a new run with this one")


def require_resumable(changed: Sequence[tuple[str, Any, Any]], new: Plan, reached: int) -> None:
    """Raises PlanError where the checkpoint cannot go on under the new plan."""
    fix = "start a new run for it: headway train"
    rule = "cannot change at a resume (it was {}): the checkpoint depends on it"
    problems = [
        _other_base(new) if key == "adapter.base" and new.adapter else Problem(key, rule.format(a), b, fix)
        for key, a, b in changed
        if _is_fixed(key, a, b)
    ]
    steps = new.schedule.steps
    if steps < reached:
        over = f"would end after {steps} steps, and the run stands at {reached}"
        problems.append(
            Problem("train.length", over, fix=f"at least {reached} steps, or take the model: headway export")
        )
    if problems:
        raise PlanError(problems=problems)


def _is_fixed(key: str, old: Any, new: Any) -> bool:
    """Without momentum sgd keeps no state, and there is none to go on from."""
    return key.startswith(_FIXED) or (key == "optimizer.momentum" and not (old and new))


def keep_old_plan(run: RunDir) -> None:
    """A copy beside it: at no time does the run have no plan."""
    number = 1
    while (kept := run.plan.with_name(f"plan-{number}.json")).exists():
        number += 1
    shutil.copyfile(run.plan, kept)
