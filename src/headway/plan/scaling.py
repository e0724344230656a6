"""The same run on other numbers of devices: what one more host buys, the smallest that fits, a curve."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from headway.errors import PlanError
from headway.facts.schema import ClusterFacts
from headway.plan.forecast import Basis, Forecast, forecast
from headway.plan.schema import Plan

Planner = Callable[[ClusterFacts], Plan]


@dataclass(frozen=True)
class Scale:
    """The run on `hosts` x `devices_per_host`; reason: why it cannot run there. days, cost: of the whole run."""

    hosts: int
    devices_per_host: int
    label: str = ""
    forecast: Forecast | None = None
    days: float = 0.0
    cost: float | None = None
    efficiency: float = 0.0  # tokens a second and device, over those of the smallest of the list
    reason: str = ""

    @property
    def devices(self) -> int:
        return self.hosts * self.devices_per_host


def on(cluster: ClusterFacts, hosts: int, devices_per_host: int, make: Planner, basis: Basis) -> Scale:
    """Plan for another number of devices. Host memory goes with the devices of a host that is cut."""
    share = devices_per_host / cluster.devices_per_host
    memory = cluster.host_memory_bytes if share >= 1 else int(cluster.host_memory_bytes * share)
    other = cluster.model_copy(
        update={"hosts": hosts, "devices_per_host": devices_per_host, "host_memory_bytes": memory}
    )
    machine = replace(basis.machine, hosts=hosts, devices_per_host=devices_per_host, host_memory_bytes=memory)
    changed = replace(basis, machine=machine)
    try:
        plan = make(other)
    except PlanError as error:
        return Scale(hosts, devices_per_host, reason=str(error).splitlines()[0])
    if plan.batch.global_sequences < plan.launch.processes:
        few = (
            f"a step's {plan.batch.global_sequences} sequences are fewer than the devices; a larger train.global_batch"
        )
        return Scale(hosts, devices_per_host, plan.strategy.label, reason=few)
    found = forecast(plan, changed)
    if not found.fits:
        return Scale(hosts, devices_per_host, plan.strategy.label, reason=found.misfit)
    days = found.run_seconds(plan.schedule.steps) / 86400
    price = basis.price.usual if basis.price else None
    cost = days * 24 * hosts * devices_per_host * price if price is not None else None
    return Scale(hosts, devices_per_host, plan.strategy.label, found, days, cost)


def scan(cluster: ClusterFacts, hosts: Iterable[int], make: Planner, basis: Basis) -> tuple[Scale, ...]:
    """The run on each number of hosts, with its efficiency against the first that fits."""
    found = [on(cluster, count, cluster.devices_per_host, make, basis) for count in hosts]
    first = next((each for each in found if each.forecast), None)
    if first is None or first.forecast is None:
        return tuple(found)
    each_device = first.forecast.tokens_per_second / first.devices
    return tuple(
        replace(scale, efficiency=scale.forecast.tokens_per_second / scale.devices / each_device)
        if scale.forecast
        else scale
        for scale in found
    )


def smallest(cluster: ClusterFacts, make: Planner, basis: Basis, most: int = 4096) -> Scale | None:
    """The fewest devices on which the run fits: powers of two on one host, then whole hosts; None where `most` do not.

    Between a number of hosts that is too small and its double, bisection: more hosts never need more of a device.
    """
    whole = cluster.devices_per_host
    for devices in (1 << power for power in range(whole.bit_length())):
        if devices < whole and (found := on(cluster, 1, devices, make, basis)).forecast is not None:
            return found
    low, hosts = 0, 1
    while (found := on(cluster, hosts, whole, make, basis)).forecast is None:
        low, hosts = hosts, 2 * hosts
        if hosts * whole > most:
            return None
    while hosts - low > 1:
        middle = (low + hosts) // 2
        if (tried := on(cluster, middle, whole, make, basis)).forecast is not None:
            found, hosts = tried, middle
        else:
            low = middle
    return found
