"""`headway plan`: the plan of a run file, or of a model alone, on this machine or on one that is not at hand."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from headway.api import preparing
from headway.api.preparing import Planned
from headway.check.report import Report
from headway.config.load import LoadedRun, load_run
from headway.errors import ModelError, PlanError, Problem
from headway.facts.adapters import with_adapter
from headway.facts.catalogue import find_model, near_models
from headway.facts.cluster import probe_cluster
from headway.facts.clusterfile import ClusterFile, read_cluster
from headway.facts.hardware import Machine, machine_of
from headway.facts.model_config import (
    check_fit,
    encoder_notes,
    locate_pretrained,
    read_config,
    sequence_notes,
    stored_notes,
)
from headway.facts.prices import SHIPPED, PriceTable, read_prices
from headway.facts.schema import ClusterFacts
from headway.facts.shape import shape_of
from headway.facts.wanted import Wanted, wanted_cluster
from headway.plan.degrees import NOTHING_ASKED, Asked, advise, check
from headway.plan.forecast import Basis
from headway.plan.make import AllFacts, make_plan
from headway.plan.memory import GIB
from headway.plan.outlook import Outlook, Question, outlook
from headway.plan.schema import Plan
from headway.plan.whatif import TOKENS_PER_PARAMETER, data_for, run_for, task_for

# Where `headway calibrate` writes unless told otherwise: found again by every plan from the same folder.
CALIBRATED = Path(".headway/cluster.yaml")
# What a run file says of this machine does not hold for another.
_ELSEWHERE = ("launch.gpus=null", "launch.processes=null", "launch.device=auto")


@dataclass(frozen=True)
class Inquiry:
    """What `headway plan` was asked. file or model, not both; on: see headway.facts.wanted."""

    file: Path | None = None
    model: str | None = None
    overrides: Sequence[str] = ()
    on: str | None = None
    hosts: tuple[int, ...] = ()
    prices: Path | None = None
    host_memory_bytes: int | None = None
    asked: Asked = NOTHING_ASKED


def look_ahead(inquiry: Inquiry) -> tuple[Planned, Outlook | None]:
    """The plan with its findings, and the outlook on it; None on this machine's GPUs where no table has them.

    Raises the errors of `headway.api.plan`; PlanError for a machine or degrees that cannot be, or where nothing fits.
    """
    where = _where(inquiry)
    _refuse_unused(inquiry, where.facts)
    loaded, facts = _facts(inquiry, where.facts)

    def make(cluster: ClusterFacts) -> Plan:
        return make_plan(loaded, replace(facts, cluster=cluster))

    try:
        plan = make(where.facts)
    except PlanError as error:
        raise _advised(error, loaded, facts, where, inquiry.asked) from error
    if inquiry.model is not None:
        assumed = f"what train.length reads; unless told, {TOKENS_PER_PARAMETER} tokens for each parameter"
        plan = plan.model_copy(update={"reasons": plan.reasons | {"facts": assumed}})
    here = inquiry.on is None and inquiry.file is not None
    report = preparing.findings(plan, loaded, preparing.runs_root(loaded)) if here else Report(())
    prices = read_prices(inquiry.prices or SHIPPED)
    try:
        basis = basis_of(where, prices)
    except PlanError:
        if inquiry.on is not None:
            raise
        return Planned(plan, report, loaded), None
    question = Question(
        train=loaded.config.train,
        basis=basis,
        make=make,
        hosts=inquiry.hosts,
        asked=inquiry.asked,
        assumed=(*where.assumed, *learned_words(basis)),
    )
    return Planned(plan, report, loaded), outlook(plan, question)


def _refuse_unused(inquiry: Inquiry, cluster: ClusterFacts) -> None:
    """Raises PlanError with everything that was asked and would change nothing."""
    problems: list[Problem] = []
    if inquiry.hosts and cluster.device == "cpu":
        rule = "scans hosts with GPUs; a run on CPUs has as many processes as launch.processes says"
        problems.append(Problem("--nodes", rule, fix="launch.processes=N, or --on with GPUs"))
    if inquiry.asked.anything and cluster.device == "cpu":
        words = ", ".join(f"--{name}" for name, value in vars(inquiry.asked).items() if value is not None)
        problems.append(Problem(words, "is advice for GPUs, which this machine has none of", fix="--on with GPUs"))
    if inquiry.host_memory_bytes is not None and inquiry.on is None:
        rule = "is of the hosts that --on names; this machine's is known"
        problems.append(Problem("--host-memory", rule, fix="leave it out, or --on MACHINE"))
    if problems:
        raise PlanError(problems=problems)


def _advised(error: PlanError, loaded: LoadedRun, facts: AllFacts, where: Wanted, asked: Asked) -> PlanError:
    """That nothing fits, with what would on the same devices where software splits layers and sequences too.

    Raises PlanError for degrees that cannot be.
    """
    if error.problems or where.facts.device != "cuda":
        return error
    strategy = loaded.config.strategy.model_copy(update={"kind": "deepspeed", "stage": 3})
    kept = replace(loaded, config=loaded.config.model_copy(update={"strategy": strategy}))
    try:
        plan, machine = make_plan(kept, replace(facts, cluster=where.facts)), _machine(where)
    except PlanError:
        return error
    check(asked, plan.shape, machine, plan.data.sequence)
    if (best := advise(plan, machine, asked)) is None:
        return error
    said = f"{best.label} fits: {best.forecast.device_bytes / GIB:.1f} of {best.forecast.limit_bytes / GIB:.1f} GiB"
    message = str(error).removesuffix(f"\n    fix: {error.fix}")
    return PlanError(message, fix=f"{error.fix}; advice, not in this engine: {said}")


def _machine(where: Wanted) -> Machine:
    return where.file.machine() if where.file else machine_of(where.facts)


def _where(inquiry: Inquiry) -> Wanted:
    if inquiry.on is not None:
        return wanted_cluster(inquiry.on, inquiry.host_memory_bytes)
    device = load_run(inquiry.file, inquiry.overrides).config.launch.device if inquiry.file else "auto"
    facts = probe_cluster(device)
    file = calibrated(facts)
    return Wanted(facts, file, () if file else ("nothing was measured here: `headway calibrate` takes 20 seconds",))


def calibrated(facts: ClusterFacts, path: Path = CALIBRATED) -> ClusterFile | None:
    """The cluster file that `headway calibrate` wrote here, while it is of this very machine."""
    if not path.is_file():
        return None
    file = read_cluster(path)
    same = (file.device, file.device_name, file.devices_per_host) == (
        facts.device, facts.device_name, facts.devices_per_host,
    )  # fmt: skip
    return file if same else None


def basis_of(where: Wanted, prices: PriceTable) -> Basis:
    file, machine = where.file, _machine(where)
    price = (file.price if file else None) or prices.price_of(machine.device.name)
    return Basis(machine, prices, price, file.rates if file else None, file.learned if file else None)


def learned_words(basis: Basis) -> tuple[str, ...]:
    """What `--learn` put into every figure."""
    learned = basis.learned
    if learned is None:
        return ()
    runs = ", ".join(learned.runs)
    factors = f"steps {learned.step_time:.2f} x, memory {learned.memory:.2f} x"
    return (f"{factors}, as learnt from {runs}: one factor each for every strategy, whichever of them ran",)


def _facts(inquiry: Inquiry, cluster: ClusterFacts) -> tuple[LoadedRun, AllFacts]:
    elsewhere = _ELSEWHERE if inquiry.on is not None and cluster.device == "cuda" else ()
    if inquiry.file is not None:
        loaded = load_run(inquiry.file, [*inquiry.overrides, *elsewhere])
        data = preparing.look_at_data(loaded)
        return loaded, preparing.gather_facts(loaded, data, cluster, here=inquiry.on is None)
    if inquiry.model is None:
        raise PlanError("there is nothing to plan", fix="name a run file, or a model: --model PATH_or_config.json")
    config = model_config(inquiry.model)
    section, changes = {"from": inquiry.model}, [*inquiry.overrides, *elsewhere]
    shape = shape_of(config, task_for(section, changes))
    devices = cluster.hosts * cluster.devices_per_host if cluster.device == "cuda" else 1
    loaded = run_for(section, shape, changes, devices)
    data, asked = data_for(loaded.config, shape.vocab), loaded.config
    if asked.adapter is not None:
        shape = with_adapter(shape, config, asked.adapter.rank, asked.adapter.targets)
    name = Path(inquiry.model).absolute()
    called = name.parent.name if name.name == "config.json" else name.name.removesuffix(".json")
    check_fit(config, vocab=0, sequence=asked.train.sequence, where=inquiry.model)
    notes = (*stored_notes(config), *sequence_notes(config, asked.train.sequence))
    notes += encoder_notes(config, asked.task.kind)
    return loaded, AllFacts(cluster, shape, data, config, called, model_path=inquiry.model, notes=notes)


def _located(name: str) -> dict[str, Any]:
    try:
        return read_config(locate_pretrained(name, None, Path())[0])
    except ModelError as error:
        near = near_models(name)
        if not near:
            raise
        raise ModelError(f"{error}; or a known model: {', '.join(near)}") from error


def model_config(name: str) -> dict[str, Any]:
    """The config behind a folder, a config.json, a known model's name or a Hub id.

    Raises:
        ModelError: there is none; near names of known models are in its fix.
    """
    path = Path(os.path.expanduser(name))
    if not path.exists() and (known := find_model(name)) is not None:
        return known
    if not path.is_file():
        return _located(name)
    try:
        config: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}", fix="give a model's config.json") from error
    if not isinstance(config, dict) or not isinstance(cast("dict[str, Any]", config).get("model_type"), str):
        fix = 'give a transformers config.json, which says for example "model_type": "llama"'
        raise ModelError(f"{path} has no model_type", fix=fix)
    return cast("dict[str, Any]", config)
