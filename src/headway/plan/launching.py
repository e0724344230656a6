"""Device, processes, threads and backend."""

from __future__ import annotations

from headway.config.schema import LaunchConfig
from headway.facts.schema import ClusterFacts
from headway.plan.ledger import Ledger
from headway.plan.schema import LaunchPlan

# Two processes of one thread beat one of two (measured, 8 M parameters), and show every effect of more ranks.
_CPU_PROCESSES = 2


def plan_launch(asked: LaunchConfig, strategy_kind: str, cluster: ClusterFacts, ledger: Ledger) -> LaunchPlan:
    """How many processes run where. Refuses devices that the machine does not have."""
    _check_devices(asked, cluster, ledger)
    single = strategy_kind == "single"
    processes = _gpu_processes(asked, cluster, ledger, single=single)
    if cluster.device == "cpu":
        processes = _cpu_processes(asked, cluster, ledger, single=single)
    threads = _threads(asked, cluster, processes, ledger)
    backend = "nccl" if cluster.device == "cuda" else "gloo"
    ledger.because("launch.device", "launch.device" if asked.device != "auto" else _device_reason(cluster))
    ledger.because("launch.backend", f"{backend}: the backend for {cluster.device}")
    return LaunchPlan(
        kind=asked.kind,
        device=cluster.device,
        processes=processes,
        threads=threads,
        backend=backend,
        timeout_seconds=asked.timeout,
        grace_seconds=asked.grace,
        port=asked.port,
        debug=asked.debug,
    )


def _device_reason(cluster: ClusterFacts) -> str:
    if cluster.device == "cuda":
        return f"{cluster.devices_per_host} x {cluster.device_name}"
    return "no GPU that torch can use was found"


def _check_devices(asked: LaunchConfig, cluster: ClusterFacts, ledger: Ledger) -> None:
    on_cpu = "launch.gpus=null launch.device=cpu launch.processes=2"
    if cluster.device == "cpu":
        if asked.gpus is not None:
            ledger.refuse("launch.gpus", asked.gpus, "this machine has no GPU that torch can use", on_cpu)
        if asked.device == "cuda":
            rule = "this machine has no GPU that torch can use"
            ledger.refuse("launch.device", "cuda", rule, "launch.device=cpu")
        return
    count = cluster.devices_per_host * cluster.hosts
    for key, wanted in (("launch.gpus", asked.gpus), ("launch.processes", asked.processes)):
        if wanted is not None and wanted > count:
            who = "this machine has" if cluster.hosts == 1 else "these hosts have"
            rule = f"{who} {count} ({cluster.device_name}); one process runs on each"
            ledger.refuse(key, wanted, rule, f"{key}={count}, or {on_cpu}")


def _gpu_processes(asked: LaunchConfig, cluster: ClusterFacts, ledger: Ledger, *, single: bool) -> int:
    if asked.gpus or asked.processes:
        ledger.because("launch.processes", "launch.gpus" if asked.gpus else "launch.processes")
        return asked.gpus or asked.processes or 1
    where = "this machine" if cluster.hosts == 1 else f"{cluster.hosts} hosts"
    ledger.because("launch.processes", "strategy: single" if single else f"one process on every GPU of {where}")
    return 1 if single else cluster.devices_per_host * cluster.hosts


def _cpu_processes(asked: LaunchConfig, cluster: ClusterFacts, ledger: Ledger, *, single: bool) -> int:
    if asked.processes:
        ledger.because("launch.processes", "launch.processes")
        return asked.processes
    count = 1 if single else min(_CPU_PROCESSES, cluster.devices_per_host)
    why = (
        "strategy: single" if single else f"on a CPU {_CPU_PROCESSES}, at most one a core ({cluster.devices_per_host})"
    )
    ledger.because("launch.processes", why)
    return count


def _threads(asked: LaunchConfig, cluster: ClusterFacts, processes: int, ledger: Ledger) -> int:
    if asked.threads != "auto":
        ledger.because("launch.threads", "launch.threads")
        return asked.threads
    if cluster.device == "cuda":
        ledger.because("launch.threads", "the GPU does the work; one thread feeds it")
        return 1
    cores = cluster.devices_per_host
    ledger.because("launch.threads", f"{cores} cores / {processes} processes")
    return max(1, cores // processes)
