"""`headway calibrate`: a job of this machine's own ranks that measures it, and the cluster file that follows."""

from __future__ import annotations

import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, cast

from headway.api.outlooks import CALIBRATED
from headway.config.load import from_mapping
from headway.config.schema import StrategyConfig
from headway.errors import WorkerFailed
from headway.facts.cluster import probe_cluster
from headway.facts.clusterfile import ClusterFile, Rates, read_cluster, write_cluster
from headway.facts.model_config import resolve_model
from headway.facts.schema import ClusterFacts
from headway.facts.shape import shape_of
from headway.launch.attempt import LocalOptions
from headway.launch.local import run_job, warm_up
from headway.launch.seam import JobSpec
from headway.plan.calibrated import measured_times, sharded_terms
from headway.plan.calibration import fit_terms, link_rate, terms_of
from headway.plan.files import write_plan
from headway.plan.make import AllFacts, make_plan
from headway.plan.schema import Plan
from headway.plan.strategy import StrategyRequest, deepspeed
from headway.plan.whatif import data_for
from headway.plan.work import request_of, work_of
from headway.run.paths import RunDir

WORKER = "headway.train.rating"
# hidden, layers, ffn, vocabulary, sequence, micro batch, accumulation: each stresses another term. A model of one
# layer shows the head, accumulation divides the update from the rest, and the two smallest, one shallow and one deep,
# what a step and a layer take whatever their size.
_ON_CPU = (
    (64, 1, 128, 512, 16, 1, 1),
    (64, 5, 128, 512, 16, 1, 1),
    (256, 4, 704, 4096, 256, 2, 1),
    (256, 4, 704, 4096, 256, 1, 2),
    (512, 2, 1408, 8192, 128, 2, 1),
    (128, 4, 384, 2048, 128, 4, 1),
    (128, 2, 384, 16384, 256, 2, 1),
    (256, 4, 704, 4096, 512, 1, 1),
)
_ON_GPU = (
    (2048, 4, 5632, 32768, 2048, 4, 1),
    (2048, 4, 5632, 32768, 2048, 4, 2),
    (4096, 3, 11008, 32768, 2048, 2, 1),
    (1024, 8, 2816, 32768, 1024, 8, 1),
    (1024, 2, 2816, 131072, 2048, 2, 1),
    (2048, 4, 5632, 32768, 4096, 1, 1),
)
# Of these, which ZeRO's stages are measured on: the two smallest, a middling one, the largest.
_SHARDED_ON_CPU = (0, 1, 5, 4)
_TURNS = 2  # of each setting, where they agree


def calibrate(device: Literal["auto", "cpu", "cuda"] = "auto", name: str = "") -> ClusterFile:
    """Measure this machine: about 20 seconds. Every device takes part, as in training.

    Raises:
        PlanError: `cuda` was asked for and there is none.
        WorkerFailed: a rank could not measure, with its own words.
    """
    cluster = probe_cluster(device)
    plans = reference_plans(cluster)
    return cluster_file(cluster, plans, measure(plans), name or cluster.device_name)


def reference_plans(cluster: ClusterFacts) -> list[Plan]:
    """The settings that the rates of a step are fitted to."""
    warm_up(cluster.device)
    if cluster.device == "cuda":
        return [setting_plan(cluster, setting) for setting in _ON_GPU]
    alone = [setting_plan(cluster, setting) for setting in _ON_CPU]
    return [*alone, *(_sharded(alone[number], stage) for stage in (2, 3) for number in _SHARDED_ON_CPU)]


def _sharded(plan: Plan, stage: int) -> Plan:
    request = StrategyRequest(StrategyConfig(), "auto", request_of(plan))
    strategy = deepspeed(request, stage, offload_optimizer=False, offload_parameters=False)
    return plan.model_copy(update={"strategy": strategy})


def measure(plans: list[Plan], turns: int = _TURNS) -> dict[str, Any]:
    """What the ranks of this machine measured: rates, and the seconds of a step of each plan, which take turns.

    A plan whose `turns` differ gets one more.

    Raises WorkerFailed with the first rank's own words.
    """
    with tempfile.TemporaryDirectory(prefix="headway-calibrate-") as folder:
        run = RunDir(Path(folder) / "rates")
        run.log_folder.mkdir(parents=True)
        write_plan(plans[0], run.plan)
        for number, plan in enumerate(plans):
            (run.path / f"setting-{number}.json").write_text(plan.model_dump_json())
        job = {"turns": turns, "disk": str(Path.cwd())}
        (run.path / "job.json").write_text(json.dumps(job))
        status = run_job(JobSpec(run.path, plans[0].launch), lambda: None, LocalOptions(worker_module=WORKER))
        if status.failure is not None:
            raise WorkerFailed(f"rank {status.failure.rank} could not measure: {status.failure.error}")
        return cast("dict[str, Any]", json.loads((run.path / "rates.json").read_text()))


def setting_plan(cluster: ClusterFacts, setting: tuple[int, ...]) -> Plan:
    """One setting as a plan: every rank by itself, so that no exchange is in its time."""
    hidden, layers, ffn, vocab, sequence, micro, accumulation = setting
    head = 64 if hidden < 4096 else 128
    arch = {"arch": "llama", "hidden": hidden, "layers": layers, "heads": hidden // head, "ffn": ffn, "vocab": vocab}
    ranks = 2 if cluster.device == "cpu" else cluster.devices_per_host
    file = {
        "model": {"config": arch, "tokenizer": {"train": vocab}},
        "data": {"train": ["*.txt"]},
        "train": {
            "length": "10 steps",
            "sequence": sequence,
            "global_batch": f"{micro * accumulation * min(ranks, cluster.devices_per_host)} sequences",
            "micro_batch": micro,
            "activation_checkpointing": False,
        },
        "optimizer": {"lr": 1e-4},
        "strategy": "ddp",
    }
    run = from_mapping(file, base=Path(), where="calibrate")
    origin = resolve_model(run.config.model, vocab=vocab, sequence=sequence, base=Path())
    facts = AllFacts(cluster, shape_of(origin.config), data_for(run.config, vocab), origin.config, "calibrate")
    plan = make_plan(run, facts)
    alone = plan.strategy.model_copy(update={"kind": "single"})
    return plan.model_copy(update={"strategy": alone})


def cluster_file(cluster: ClusterFacts, plans: list[Plan], measured: dict[str, Any], name: str) -> ClusterFile:
    """The measured figures as rates."""
    timed = [(plan, step["seconds"]) for plan, step in zip(plans, measured["steps"], strict=True)]
    alone = [(plan, seconds) for plan, seconds in timed if plan.strategy.kind != "deepspeed"]
    taken = [seconds for _, seconds in alone]
    flops, stream, layer, update, step = fit_terms([terms_of(work_of(plan)) for plan, _ in alone], taken, taken)
    ranks = plans[0].launch.processes
    link = link_rate(measured["link"], ranks) if measured["link"] else (None, 0.0)
    rates = Rates(
        precision=plans[0].numerics.precision,
        matmul_flops=measured["matmul_flops"],
        layer_flops=1 / flops if flops else None,
        stream_bytes_per_second=1 / stream if stream else None,
        update_parameters_per_second=1 / update if update else None,
        layer_seconds=layer,
        step_seconds=step,
        copy_bytes_per_second=measured["copy_bytes_per_second"],
        link_bytes_per_second=link[0],
        link_seconds=link[1],
        host_bytes_per_second=measured["host_bytes_per_second"],
        disk_bytes_per_second=measured["disk_bytes_per_second"],
    )
    own = {f"stage_{stage}_{name}": unit for stage in (2, 3) for name, unit in _own(timed, stage, rates).items()}
    return ClusterFile(
        name=name,
        device=cluster.device,
        device_name=cluster.device_name,
        hosts=cluster.hosts,
        devices_per_host=cluster.devices_per_host,
        device_memory=cluster.device_memory_bytes,
        host_memory=cluster.host_memory_bytes,
        bf16=cluster.bf16,
        measured=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {ranks} ranks at once",
        rates=rates.model_copy(update=own),
    )


def _own(timed: list[tuple[Plan, float]], stage: int, rates: Rates) -> dict[str, float]:
    """What a stage takes of a layer, a parameter and a step, beyond what the rates explain."""
    mine = [(plan, seconds) for plan, seconds in timed if plan.strategy.label == f"zero-{stage}"]
    if not mine:
        return {}
    beyond = [seconds - sum(item.seconds for item in measured_times(plan, rates)) for plan, seconds in mine]
    units = fit_terms([sharded_terms(plan) for plan, _ in mine], beyond, [seconds for _, seconds in mine])
    names = ("layer_seconds", "mapped_parameter_seconds", "parameter_seconds", "step_seconds")
    return dict(zip(names, units, strict=True))


def write_calibrated(out: Path | None, device: Literal["auto", "cpu", "cuda"], name: str) -> tuple[ClusterFile, Path]:
    """Measure and write; what an earlier file says of price and of learnt runs stays in it."""
    path = out or CALIBRATED
    old = read_cluster(path) if path.is_file() else None
    cluster = calibrate(device, name)
    if old is not None and old.device_name == cluster.device_name:
        cluster = cluster.model_copy(update={"price": old.price, "name": name or old.name})
    write_cluster(path, cluster)
    return cluster, path
