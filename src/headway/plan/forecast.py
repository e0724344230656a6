"""What a plan will need and how long it will take, on the machine that it is asked of."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headway.facts.clusterfile import Learned, Rates
from headway.facts.hardware import Machine
from headway.facts.prices import Price, PriceTable
from headway.plan.calibrated import measured_forward, measured_times
from headway.plan.constants import MEMORY
from headway.plan.estimate import estimate
from headway.plan.memory import GIB, host_limit_bytes, setting_of, used_bytes
from headway.plan.passes import Passes, passes_of
from headway.plan.schema import MemoryItem, Plan
from headway.plan.setting import USABLE_SHARE, Degrees, Estimate, EstimateRequest, TimeItem
from headway.plan.steptime import forward_seconds
from headway.plan.work import request_of, rows_of, useful_flops_per_token

# Nine of ten published speeds lie within this share of the estimate (docs/planner-accuracy.md), and 40 of 48 steps of a
# calibrated CPU machine at any load (bench/results/planner-here.md).
TIME_BAND = 0.25
_CPU_MEMORY_BAND = 0.10


@dataclass(frozen=True)
class Basis:
    """What a forecast stands on beside the plan: the machine, what was measured and learnt of it, prices.

    price: of one device of this machine; None where no table has it.
    """

    machine: Machine
    prices: PriceTable
    price: Price | None = None
    rates: Rates | None = None
    learned: Learned | None = None


@dataclass(frozen=True)
class Forecast:
    """Of the fullest device, and of one step of all. `items` add up to device_bytes; host figures are of one host.

    low_bytes, high_bytes: the band of device_bytes. time_band: 0.1 means 10 % either way. mfu: None where no peak is
    known. passes: what the run computes beside its steps.
    """

    items: tuple[MemoryItem, ...]
    device_bytes: int
    low_bytes: int
    high_bytes: int
    limit_bytes: int
    host_bytes: int
    host_limit_bytes: int
    times: tuple[TimeItem, ...]
    step_seconds: float
    time_band: float
    tokens_per_second: float
    mfu: float | None
    passes: tuple[Passes, ...] = ()

    def run_seconds(self, steps: int) -> float:
        """Of so many steps and all passes beside them, without saves and failures."""
        return steps * self.step_seconds + sum(each.seconds for each in self.passes)

    @property
    def fits(self) -> bool:
        return self.device_bytes <= self.limit_bytes and self.host_bytes <= self.host_limit_bytes

    @property
    def is_tight(self) -> bool:
        """Whether it fits, but the upper end of its band is more than the device has."""
        return self.fits and USABLE_SHARE * self.high_bytes > self.limit_bytes

    @property
    def misfit(self) -> str:
        """'93.4 of 79.1 GiB; activations 41.2'; of the host where that is what is too small."""
        if self.device_bytes > self.limit_bytes:
            largest = max(self.items, key=lambda item: item.device_bytes)
            figures = f"{self.device_bytes / GIB:.1f} of {self.limit_bytes / GIB:.1f} GiB"
            return f"{figures}; {largest.name} {largest.device_bytes / GIB:.1f}"
        largest = max(self.items, key=lambda item: item.host_bytes)
        figures = f"host memory {self.host_bytes / GIB:.0f} of {self.host_limit_bytes / GIB:.0f} GiB"
        return f"{figures}; {largest.name} {largest.host_bytes / GIB:.1f} a process"


def forecast(plan: Plan, basis: Basis) -> Forecast:
    """Memory by the estimate of the device's kind; time by this machine's own rates where it was calibrated."""
    found = _on_cpu(plan, basis) if plan.cluster.device == "cpu" else _on_gpu(plan, basis)
    useful = plan.batch.global_sequences / plan.batch.slots  # the rest are fillers of zero count: time, but no tokens
    found = replace(
        found,
        tokens_per_second=found.tokens_per_second * useful,
        mfu=found.mfu and found.mfu * useful,
        passes=passes_of(plan, _forward_seconds(plan, basis), found.step_seconds),
    )
    if basis.learned is None:
        return found
    factor, larger = basis.learned.step_time, basis.learned.memory
    sizes = {name: int(getattr(found, name) * larger) for name in ("device_bytes", "low_bytes", "high_bytes")}
    return replace(
        found,
        **sizes,
        items=tuple(item.model_copy(update={"device_bytes": int(item.device_bytes * larger)}) for item in found.items),
        times=tuple(replace(item, seconds=item.seconds * factor) for item in found.times),
        step_seconds=found.step_seconds * factor,
        tokens_per_second=found.tokens_per_second / factor,
        mfu=found.mfu and found.mfu / factor,
        passes=tuple(replace(each, seconds=each.seconds * factor) for each in found.passes),
    )


def _forward_seconds(plan: Plan, basis: Basis) -> float:
    """Of one micro batch."""
    if plan.cluster.device == "cpu" and basis.rates is not None:
        return measured_forward(plan, basis.rates)
    return forward_seconds(request_for(plan, _machine_of(plan, basis)))


def _machine_of(plan: Plan, basis: Basis) -> Machine:
    """A CPU that was not measured has a core's rates; a process has several cores, which share the memory's."""
    device, threads = basis.machine.device, plan.launch.threads
    if device.kind != "cpu" or threads == 1:
        return basis.machine
    rates = {name: threads * rate for name, rate in device.matmul_flops.items()}
    return replace(basis.machine, device=replace(device, matmul_flops=rates))


def _on_gpu(plan: Plan, basis: Basis) -> Forecast:
    """Time by the estimates, memory as it was planned."""
    found, memory = of_estimate(estimate(request_for(plan, basis.machine))), plan.memory
    rate = found.tokens_per_second / rows_of(plan)  # both answers of a pair are one window of the data
    return replace(
        found,
        items=memory.items,
        device_bytes=memory.device_bytes,
        low_bytes=int(memory.device_bytes * (1 - MEMORY.band)),
        high_bytes=int(memory.device_bytes * (1 + MEMORY.band)),
        host_bytes=memory.host_bytes * min(plan.launch.processes, plan.cluster.devices_per_host),
        host_limit_bytes=host_limit_bytes(plan.cluster),
        tokens_per_second=rate,
    )


def of_estimate(found: Estimate) -> Forecast:
    return Forecast(
        items=found.items,
        device_bytes=found.device_bytes,
        low_bytes=found.low_bytes,
        high_bytes=found.high_bytes,
        limit_bytes=found.limit_bytes,
        host_bytes=found.host_bytes,
        host_limit_bytes=found.host_limit_bytes or 2**62,
        times=found.times,
        step_seconds=found.step_seconds,
        time_band=TIME_BAND,
        tokens_per_second=found.tokens_per_second,
        mfu=found.mfu,
    )


def _on_cpu(plan: Plan, basis: Basis) -> Forecast:
    used, processes = used_bytes(plan.memory, plan.cluster), plan.launch.processes
    tokens = plan.batch.slots * plan.data.sequence
    if basis.rates is None:
        found = estimate(request_for(plan, _machine_of(plan, basis)))
        times, seconds, band = found.times, found.step_seconds, 1.0  # a core's rate by its name alone is a guess
    else:
        times = measured_times(plan, basis.rates)
        seconds, band = sum(item.seconds for item in times), TIME_BAND
    flops = tokens * rows_of(plan) * useful_flops_per_token(plan.shape, plan.data.sequence)
    peak = basis.rates.matmul_flops * processes if basis.rates else None
    return Forecast(
        items=plan.memory.items,
        device_bytes=used,
        low_bytes=int(used * (1 - _CPU_MEMORY_BAND)),
        high_bytes=int(used * (1 + _CPU_MEMORY_BAND)),
        limit_bytes=plan.memory.device_limit_bytes,
        host_bytes=used * processes,
        host_limit_bytes=host_limit_bytes(plan.cluster),
        times=times,
        step_seconds=seconds,
        time_band=band,
        tokens_per_second=tokens / seconds,
        mfu=flops / seconds / peak if peak else None,
    )


def request_for(plan: Plan, machine: Machine, degrees: Degrees | None = None) -> EstimateRequest:
    """The plan as the estimates take it, and as its memory was planned; other `degrees` are not the engine's."""
    made = setting_of(request_of(plan))
    return replace(
        made,
        machine=machine,
        degrees=degrees or made.degrees,
        accumulation=plan.batch.accumulation,
        tf32=plan.numerics.tf32,
    )
