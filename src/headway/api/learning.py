"""What the plan promised, kept in the run's record; and what runs taught, kept in the cluster file."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headway.api.outlooks import CALIBRATED, basis_of, calibrated
from headway.errors import PlanError, UserError
from headway.facts.clusterfile import ClusterFile, Learned, read_cluster, write_cluster
from headway.facts.prices import read_prices
from headway.facts.schema import ClusterFacts
from headway.facts.wanted import FILE_ENDINGS, Wanted
from headway.plan.files import read_plan
from headway.plan.forecast import forecast
from headway.plan.schema import Plan
from headway.run.paths import RunDir
from headway.run.record import read_record


def promise(plan: Plan) -> dict[str, Any]:
    """The plan's forecast on its own machine, for the record; {} where the machine is in no table and not measured.

    learned: the factors that were applied, so that a later `--learn` does not count them twice.
    """
    file = calibrated(plan.cluster)
    try:
        basis = basis_of(Wanted(plan.cluster, file), read_prices())
        found = forecast(plan, basis)
    except PlanError:
        return {}
    days = found.run_seconds(plan.schedule.steps) / 86400
    price = basis.price.usual if basis.price else None
    return {
        "step_seconds": found.step_seconds,
        "tokens_per_second": found.tokens_per_second,
        "time_band": found.time_band,
        "device_bytes": found.device_bytes,
        "low_bytes": found.low_bytes,
        "high_bytes": found.high_bytes,
        "memory_items": {item.name: {"device": item.device_bytes, "host": item.host_bytes} for item in found.items},
        "price_device_hour": price,
        "currency": basis.prices.currency,
        "cost": None if price is None else days * 24 * plan.launch.processes * price,
        "measured": file.measured if file and file.rates else "",
        "learned": file.learned.model_dump(mode="json") if file and file.learned else None,
    }


def learn(paths: Sequence[Path], cluster: Path | None) -> tuple[Path, Learned]:
    """Write into the cluster file what these runs took over what was planned: the median of their quotients.

    Raises UserError: a run has no account yet, runs of other machines are among them, or no file is named.
    """
    if cluster is not None and not cluster.name.endswith(FILE_ENDINGS):
        raise UserError(f"--on {cluster}: is no cluster file to write", fix="--on my-cluster.yaml, or leave it out")
    runs = [RunDir(path) for path in paths]
    pairs = [(run, read_record(run)) for run in runs]
    open_ = [run.name for run, record in pairs if not (record.get("forecast") and record.get("actual"))]
    if open_:
        fix = "runs write it when they end or are stopped; name others"
        raise UserError(f"{', '.join(open_)}: the record holds no plan against actual", fix=fix)
    machine = _machine(runs)
    target = cluster or CALIBRATED
    file = _file(target, machine)
    times = [_quotient(record, "step_seconds", "step_seconds", "step_time") for _, record in pairs]
    sizes = [_quotient(record, "memory_peak_bytes", "device_bytes", "memory") for _, record in pairs]
    usable_times, usable_sizes = [t for t in times if t], [s for s in sizes if s]
    learned = Learned(
        runs=tuple(run.name for run in runs),
        step_time=statistics.median(usable_times) if usable_times else 1.0,
        memory=statistics.median(usable_sizes) if usable_sizes else 1.0,
    )
    write_cluster(target, file.model_copy(update={"learned": learned}))
    return target, learned


def _quotient(record: dict[str, Any], actual: str, planned: str, factor: str) -> float | None:
    """Measured over planned, without what an earlier --learn had put into the plan."""
    measured, promised = record["actual"].get(actual), record["forecast"].get(planned)
    applied = (record["forecast"].get("learned") or {}).get(factor, 1.0)
    return measured / (promised / applied) if measured and promised else None


def _machine(runs: Sequence[RunDir]) -> ClusterFacts:
    machines = [read_plan(run.plan).cluster for run in runs]
    first = machines[0]
    kinds = {(each.device_name, each.devices_per_host, each.hosts) for each in machines}
    if len(kinds) > 1:
        named = "; ".join(f"{hosts} x {count} x {name}" for name, count, hosts in sorted(kinds))
        raise UserError(f"these runs ran on different machines: {named}", fix="one cluster file for each: --on FILE")
    return first


def _file(path: Path, machine: ClusterFacts) -> ClusterFile:
    """The cluster file to correct; a new one without rates where there is none."""
    if path.is_file():
        file = read_cluster(path)
        if file.device_name != machine.device_name:
            what = f"{path} is of {file.device_name}, the runs of {machine.device_name}"
            raise UserError(what, fix="name another file: --on FILE")
        return file
    return ClusterFile(
        name=machine.device_name,
        device=machine.device,
        device_name=machine.device_name,
        hosts=machine.hosts,
        devices_per_host=machine.devices_per_host,
        device_memory=machine.device_memory_bytes,
        host_memory=machine.host_memory_bytes,
        bf16=machine.bf16,
    )
