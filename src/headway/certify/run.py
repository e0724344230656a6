"""Seven small runs, each a real job of the launcher, and the certificate that follows from what they leave."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from headway.certify.judge import GRADIENTS_AT, Evidence, judge
from headway.certify.material import with_material
from headway.certify.numerics import numerics_hash, versions
from headway.certify.outcome import OUTCOME, Outcome, read_outcome
from headway.certify.schema import Certificate, Claim
from headway.certify.shrink import KILLED_AFTER, SAVED_AT, Small, on_one_rank, shrink, with_dropout
from headway.certify.watching_job import Job
from headway.checkpoint.layout import checkpoint_name
from headway.errors import Stopped
from headway.launch.attempt import LocalOptions
from headway.launch.local import run_job
from headway.launch.seam import JobSpec
from headway.plan.files import write_plan
from headway.plan.schema import IntervalPlan, Plan, StrategyPlan
from headway.run.paths import RunDir

WORKER = "headway.certify.worker"
REFERENCE = "reference"
_BACK_FROM = SAVED_AT + 1  # the step of alone's checkpoint from which two ranks go on


@dataclass
class Workshop:
    """The small runs of one certificate, in a folder of their own. `plant`: see watching_job.Job."""

    folder: Path
    small: Small
    progress: Callable[[str], None] = lambda name: None
    plant: str | None = None
    outcomes: dict[str, Outcome] = field(default_factory=dict[str, Outcome])
    failures: dict[str, str] = field(default_factory=dict[str, str])

    def run(self, name: str, plan: Plan, job: Job, *, resume_from: Path | None = None) -> None:
        """One small run to its end; its outcome, or why there is none."""
        run = RunDir(self.folder / name)
        run.checkpoints.mkdir(parents=True, exist_ok=True)
        if resume_from is not None:
            if not resume_from.is_dir():
                self.failures[name] = f"there was no checkpoint to start from ({resume_from.name})"
                return
            shutil.copytree(resume_from, run.checkpoints / resume_from.name, dirs_exist_ok=True)
        write_plan(plan, run.plan)
        job.write(run)
        self.progress(name)
        spec = JobSpec(run.path, plan.launch, resume=resume_from is not None)
        status = run_job(spec, lambda: None, LocalOptions(worker_module=WORKER, save_seconds=5.0))
        if status.state == "stopped":
            raise Stopped("certify was stopped; nothing was certified")
        outcome = run.path / OUTCOME
        if outcome.is_file():
            self.outcomes[name] = read_outcome(outcome)
        elif job.kill_after is None:
            self.failures[name] = status.failure.error if status.failure else f"ended with code {status.exit_code}"

    def checkpoint(self, name: str, step: int) -> Path:
        return RunDir(self.folder / name).checkpoints / checkpoint_name(step)


def certify(
    plan: Plan, folder: Path, progress: Callable[[str], None] = lambda name: None, plant: str | None = None
) -> Certificate:
    """Make the plan small, run it seven times, and judge. `folder` is emptied before and holds the runs afterwards.

    Raises:
        ModelError, DataError: the plan cannot be made small, with what to do.
        Stopped: on Ctrl-C.
    """
    started = time.time()
    shutil.rmtree(folder, ignore_errors=True)
    processes = min(2, plan.launch.processes, _devices(plan))
    small = with_material(shrink(plan, processes), plan, folder / "store")
    workshop = Workshop(folder, small, progress, plant)
    _run_all(workshop)
    claims = judge(_evidence(workshop))
    return _certificate(plan, small, claims, started)


def _devices(plan: Plan) -> int:
    return psutil.cpu_count() or 1 if plan.cluster.device == "cpu" else plan.cluster.devices_per_host


def _run_all(shop: Workshop) -> None:
    plan, plant = shop.small.plan, shop.plant
    wet = with_dropout(plan)
    shop.run(REFERENCE, _plain(plan), Job(gradients_at=GRADIENTS_AT))
    shop.run("main", plan, Job(gradients_at=GRADIENTS_AT, effects=True, plant=plant))
    shop.run("dropout", wet, Job(plant=plant))
    shop.run("killed", wet, Job(kill_after=KILLED_AFTER, plant=plant))
    shop.run("resumed", wet, Job(plant=plant), resume_from=shop.checkpoint("killed", SAVED_AT))
    alone = on_one_rank(plan)
    each = alone.checkpoint.model_copy(update={"every": IntervalPlan(steps=1)})
    alone = alone.model_copy(update={"checkpoint": each})
    shop.run("alone", alone, Job(gradients_at=GRADIENTS_AT, plant=plant), resume_from=shop.checkpoint("main", SAVED_AT))
    if plan.launch.processes > 1:
        shop.run("back", plan, Job(plant=plant), resume_from=shop.checkpoint("alone", _BACK_FROM))


def _plain(plan: Plan) -> Plan:
    """The small plan as the reference reads it: nothing but the model, the data and the numbers."""
    model = plan.model.model_copy(update={"attention": "eager"})
    numerics = plan.numerics.model_copy(
        update={
            "precision": "fp32",
            "activation_checkpointing": False,
            "compile": False,
            "loss_chunk_tokens": 0,
        }
    )
    launch = plan.launch.model_copy(update={"processes": 1, "device": "cpu", "backend": "gloo"})
    changed = {"model": model, "numerics": numerics, "launch": launch, "strategy": StrategyPlan(kind="single")}
    return plan.model_copy(update=changed)


def _evidence(shop: Workshop) -> Evidence:
    saved = {name: outcome.figures.get("saved", {}) for name, outcome in shop.outcomes.items()}
    return Evidence(
        plan=shop.small.plan,
        reference=shop.outcomes.get(REFERENCE),
        main=shop.outcomes.get("main"),
        dropout=shop.outcomes.get("dropout"),
        resumed=shop.outcomes.get("resumed"),
        alone=shop.outcomes.get("alone"),
        back=shop.outcomes.get("back"),
        saved_hash=saved.get("main", {}).get(str(SAVED_AT)),
        alone_hash=saved.get("alone", {}).get(str(_BACK_FROM)),
        export=_export_check(shop),
        failures=shop.failures,
    )


def _export_check(shop: Workshop) -> dict[str, Any] | None:
    record = RunDir(shop.folder / "main").export / "headway.json"
    if record.is_file():
        return json.loads(record.read_text(encoding="utf-8"))["check"]
    if "main" in shop.outcomes:
        shop.failures["export"] = "no model folder was written"
    return None


def _certificate(plan: Plan, small: Small, claims: tuple[Claim, ...], started: float) -> Certificate:
    tiny = small.plan
    body = {
        "numerics": numerics_hash(plan),
        "versions": versions(),
        "machine": f"{plan.cluster.device_name}, {platform.machine()}, {platform.system()}",
        "time": started,
        "seconds": round(time.time() - started, 1),
        "strategy": plan.strategy.label,
        "claims": claims,
        "shrunk": {
            "parameters": tiny.shape.parameters,
            "batch": tiny.batch.model_dump(),
            "sequence": tiny.data.sequence,
            "steps": tiny.schedule.steps,
            "strategy": tiny.strategy.model_dump(),
            "processes": tiny.launch.processes,
        },
        "substitutions": small.substitutions,
    }
    draft = Certificate(id="", **body)
    content = draft.model_dump_json(exclude={"id"})
    return draft.model_copy(update={"id": hashlib.sha256(content.encode()).hexdigest()[:16]})
