"""What one setting takes: memory of the fullest device, item by item, host memory, and where a step's time goes."""

from __future__ import annotations

from headway.plan.constants import MEMORY
from headway.plan.footprint import footprint
from headway.plan.setting import USABLE_SHARE, Estimate, EstimateRequest
from headway.plan.steptime import step_time
from headway.plan.work import useful_flops_per_token


def estimate(request: EstimateRequest) -> Estimate:
    """Memory and time of one setting, from arithmetic alone: no torch, no GPU, microseconds."""
    memory, step = footprint(request), step_time(request)
    machine, device = request.machine, request.machine.device
    per_host = min(machine.devices_per_host, request.degrees.devices)
    rate = request.step_tokens / step.seconds
    flops = useful_flops_per_token(request.shape, request.sequence)
    asked = {"fp8": "bf16", "fp32": "tf32" if request.tf32 else "fp32"}.get(request.precision, request.precision)
    peak = next(filter(None, (device.peak_flops(kind) for kind in (asked, "fp16", "fp32"))))
    return Estimate(
        items=memory.items,
        allocated_bytes=memory.allocated_bytes,
        reserved_bytes=memory.reserved_bytes,
        device_bytes=memory.device_bytes,
        low_bytes=int(memory.device_bytes * (1 - MEMORY.band)),
        high_bytes=int(memory.device_bytes * (1 + MEMORY.band)),
        limit_bytes=int(USABLE_SHARE * device.memory_bytes),
        host_bytes=memory.host_bytes * per_host,
        host_limit_bytes=int(USABLE_SHARE * machine.host_memory_bytes),
        times=step.items,
        step_seconds=step.seconds,
        tokens_per_second=rate,
        model_flops_per_token=flops,
        mfu=rate / request.degrees.devices * flops / peak,
    )
