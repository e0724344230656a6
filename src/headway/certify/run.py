"""Up to seven small runs, each a real job of the launcher, and the certificate that follows from what they leave."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from headway.certify.judge import Evidence, judge
from headway.certify.material import with_material
from headway.certify.numerics import numerics_hash, versions
from headway.certify.outcome import OUTCOME, Outcome, read_outcome
from headway.certify.schema import CLAIMS, Certificate, Claim
from headway.certify.shrink import EVERY_STEP, KILLED_AFTER, SAVED_AT, Small, on_one_rank, shrink, with_dropout
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
REFERENCE, MAIN = "reference", "main"
_BACK_FROM = SAVED_AT + 1  # the step of alone's checkpoint from which two ranks go on
# Claim -> the runs that it is judged by, in the order in which they are made.
_RUNS = {
    1: (MAIN, REFERENCE),
    2: (MAIN, "alone"),
    3: (MAIN,),
    4: ("dropout", "killed", "resumed"),
    5: (MAIN, "alone", "back"),
    6: (MAIN,),
    7: (MAIN, REFERENCE),
    8: (MAIN,),
}


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
    plan: Plan,
    folder: Path,
    progress: Callable[[str], None] = lambda name: None,
    *,
    plant: str | None = None,
    claims: Sequence[int] = CLAIMS,
) -> Certificate:
    """Make the plan small, run what the claims need, and judge. `folder` is emptied before; it holds the runs after.

    Raises:
        ModelError, DataError: the plan cannot be made small, with what to do.
        Stopped: on Ctrl-C.
    """
    started = time.time()
    shop = open_workshop(plan, folder)
    shop.progress, shop.plant = progress, plant
    make_runs(shop, claims)
    return _certificate(plan, shop.small, judge(evidence_of(shop), claims), started)


def open_workshop(plan: Plan, folder: Path) -> Workshop:
    """The small plan on its material, in an emptied folder; no run is made yet. Raises as `certify` does."""
    shutil.rmtree(folder, ignore_errors=True)
    small = shrink(plan, min(2, plan.launch.processes, _devices(plan)))
    return Workshop(folder, with_material(small, plan, folder / "store"))


def _devices(plan: Plan) -> int:
    return psutil.cpu_count() or 1 if plan.cluster.device == "cpu" else plan.cluster.devices_per_host


def make_runs(shop: Workshop, claims: Sequence[int] = CLAIMS) -> None:
    """The runs that these claims are judged by; a run that the workshop has an outcome of is not made again."""
    plan, plant = _without_export(shop.small.plan), shop.plant
    wet, alone = with_dropout(plan), _saving_each_step(on_one_rank(plan))
    exported = shop.small.plan if 6 in claims else plan
    main, other = shop.checkpoint(MAIN, SAVED_AT), shop.checkpoint("alone", _BACK_FROM)
    makers: dict[str, Callable[[], None]] = {
        MAIN: lambda: shop.run(MAIN, exported, Job(gradients_at=EVERY_STEP, states=True, effects=True, plant=plant)),
        REFERENCE: lambda: shop.run(REFERENCE, _plain(plan), Job()),
        "dropout": lambda: shop.run("dropout", wet, Job(plant=plant)),
        "killed": lambda: shop.run("killed", wet, Job(kill_after=KILLED_AFTER, plant=plant)),
        "resumed": lambda: shop.run("resumed", wet, Job(plant=plant), resume_from=shop.checkpoint("killed", SAVED_AT)),
        "alone": lambda: shop.run("alone", alone, Job(gradients_at=(SAVED_AT + 1,), plant=plant), resume_from=main),
        "back": lambda: shop.run("back", plan, Job(plant=plant), resume_from=other),
    }
    needed = {run for claim in claims for run in _RUNS[claim]}
    if plan.launch.processes == 1:
        needed.discard("back")
    for name, make in makers.items():
        # What reads the main run's outcome has nothing to read where that run broke; its failure says so.
        if name in needed and name not in shop.outcomes and (name != REFERENCE or MAIN in shop.outcomes):
            make()


def _without_export(plan: Plan) -> Plan:
    return plan.model_copy(update={"export": plan.export.model_copy(update={"at_end": False})})


def _saving_each_step(plan: Plan) -> Plan:
    each = plan.checkpoint.model_copy(update={"every": IntervalPlan(steps=1)})
    return plan.model_copy(update={"checkpoint": each})


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


def evidence_of(shop: Workshop) -> Evidence:
    """What the runs of the workshop left, for the judge."""
    saved = {name: outcome.figures.get("saved", {}) for name, outcome in shop.outcomes.items()}
    return Evidence(
        plan=shop.small.plan,
        reference=shop.outcomes.get(REFERENCE),
        main=shop.outcomes.get(MAIN),
        dropout=shop.outcomes.get("dropout"),
        resumed=shop.outcomes.get("resumed"),
        alone=shop.outcomes.get("alone"),
        back=shop.outcomes.get("back"),
        saved_hash=saved.get(MAIN, {}).get(str(SAVED_AT)),
        alone_hash=saved.get("alone", {}).get(str(_BACK_FROM)),
        export=_export_check(shop),
        failures=shop.failures,
    )


def _export_check(shop: Workshop) -> dict[str, Any] | None:
    record = RunDir(shop.folder / MAIN).export / "headway.json"
    if record.is_file():
        return json.loads(record.read_text(encoding="utf-8"))["check"]
    if MAIN in shop.outcomes:
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
