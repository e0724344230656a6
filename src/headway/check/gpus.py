"""GPUs by NVML: healthy, free, alike, linked."""

from __future__ import annotations

import os
from collections import Counter

from headway.check.host import Machine
from headway.check.report import Verdict, green, red, yellow
from headway.check.subject import Subject
from headway.facts.nvml import GpuState, read_nvml
from headway.plan.memory import used_bytes
from headway.units import format_bytes

_HOT_CELSIUS = 90  # data-centre GPUs slow down a few degrees above
_USED_BYTES = 2 * 1024**3  # more than a driver and a desktop hold


def _without(name: str, machine: Machine) -> Verdict | None:
    """The verdict where there is nothing to ask."""
    if machine.nvml.gpus:
        return None
    if machine.has_gpus:
        fix = "pip install 'headway[gpu]'" if "not installed" in machine.nvml.problem else "nvidia-smi says more"
        return yellow(name, f"the GPUs could not be asked: {machine.nvml.problem}", fix)
    return green(name, "no GPU")


def gpu_health(name: str, machine: Machine) -> Verdict:
    """Memory errors that no correction mended, rows that wait for a reset, heat."""
    if (nothing := _without(name, machine)) is not None:
        return nothing
    ill = [gpu for gpu in machine.nvml.gpus if gpu.uncorrected_errors or gpu.rows_pending]
    if ill:
        told = "; ".join(f"GPU {gpu.index}: {_illness(gpu)}" for gpu in ill)
        fix = f"nvidia-smi --gpu-reset -i {ill[0].index} (with nothing running on it); replace it if they come again"
        return red(name, f"memory errors on GPU {', '.join(str(gpu.index) for gpu in ill)}", fix, evidence=told)
    slow = [gpu for gpu in machine.nvml.gpus if gpu.throttled or (gpu.temperature_celsius or 0) >= _HOT_CELSIUS]
    if slow:
        told = "; ".join(
            f"GPU {gpu.index}: {', '.join(gpu.throttled) or 'hot'}, {gpu.temperature_celsius} C" for gpu in slow
        )
        what = f"GPU {', '.join(str(gpu.index) for gpu in slow)} is held back: every rank waits for the slowest"
        return yellow(name, what, "nvidia-smi -q -d PERFORMANCE,TEMPERATURE; look at cooling and power", evidence=told)
    return green(name, f"{len(machine.nvml.gpus)} GPUs without errors, none held back")


def _illness(gpu: GpuState) -> str:
    rows = ["memory rows wait for a reset"] if gpu.rows_pending else []
    return ", ".join([f"{gpu.uncorrected_errors or 0} uncorrected ECC errors", *rows])


def gpu_free(name: str, machine: Machine) -> Verdict:
    """Other processes on the devices, and the memory that they hold."""
    if (nothing := _without(name, machine)) is not None:
        return nothing
    busy = [
        gpu
        for gpu in machine.nvml.gpus
        if gpu.memory_bytes - gpu.free_bytes > _USED_BYTES or [pid for pid in gpu.processes if pid != os.getpid()]
    ]
    if not busy:
        return green(name, "nothing else runs on the GPUs")
    told = "; ".join(
        f"GPU {gpu.index}: {format_bytes(gpu.memory_bytes - gpu.free_bytes)} used"
        + (f", pid {', '.join(map(str, gpu.processes))}" if gpu.processes else "")
        for gpu in busy
    )
    others = ",".join(str(gpu.index) for gpu in machine.nvml.gpus if gpu not in busy)
    fix = f"export CUDA_VISIBLE_DEVICES={others}" if others else "wait for them, or end them: nvidia-smi"
    return yellow(name, f"other processes hold memory on {len(busy)} GPUs", fix, evidence=told)


def free_memory(name: str, subject: Subject) -> Verdict:
    """What is free at this moment on the plan's devices, against what one process of it needs."""
    plan = subject.plan
    if plan.launch.device != "cuda":
        return green(name, "not used by this plan")
    state = read_nvml()
    if not state.gpus:
        return green(name, f"not known: {state.problem or 'NVML lists no device'}")
    needed = used_bytes(plan.memory, plan.cluster)
    tight = [gpu for gpu in state.gpus if gpu.free_bytes < needed]
    room = [gpu for gpu in state.gpus if gpu.free_bytes >= needed]
    told = ", ".join(f"GPU {gpu.index}: {format_bytes(gpu.free_bytes)}" for gpu in state.gpus)
    if len(room) >= plan.launch.processes and not tight:
        return green(name, f"{format_bytes(needed)} are free on every device", evidence=told)
    indices = ", ".join(str(gpu.index) for gpu in tight)
    pids = sorted({pid for gpu in tight for pid in gpu.processes})
    held = f", held by pid {', '.join(map(str, pids))}" if pids else ""
    what = f"the plan needs {format_bytes(needed)} a device, and GPU {indices} has less free{held}"
    if len(room) >= plan.launch.processes:
        chosen = ",".join(str(gpu.index) for gpu in room[: plan.launch.processes])
        return yellow(name, what, f"export CUDA_VISIBLE_DEVICES={chosen}", evidence=told)
    fix = f"end what holds it (nvidia-smi), or launch.gpus={len(room)}" if room else "end what holds it: nvidia-smi"
    return red(name, what, fix, evidence=told)


def gpu_models(name: str, machine: Machine) -> Verdict:
    """Unlike devices: every rank waits for the slowest and must fit the smallest."""
    if (nothing := _without(name, machine)) is not None:
        return nothing
    kinds = Counter(gpu.name for gpu in machine.nvml.gpus)
    if len(kinds) > 1:
        most = kinds.most_common(1)[0][0]
        alike = ",".join(str(gpu.index) for gpu in machine.nvml.gpus if gpu.name == most)
        told = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
        return yellow(name, "the GPUs are of different models", f"export CUDA_VISIBLE_DEVICES={alike}", evidence=told)
    return green(name, f"{len(machine.nvml.gpus)} x {machine.nvml.gpus[0].name}")


def gpu_links(name: str, machine: Machine) -> Verdict:
    """NVLinks that are down, or on some devices only."""
    if (nothing := _without(name, machine)) is not None:
        return nothing
    up = {gpu.index: sum(gpu.links) for gpu in machine.nvml.gpus}
    down = {gpu.index: gpu.links.count(False) for gpu in machine.nvml.gpus if False in gpu.links}
    told = ", ".join(f"GPU {index}: {count} up" for index, count in up.items())
    if any(up.values()) and (down or len(set(up.values())) > 1):
        return yellow(
            name, "some NVLinks are down: traffic takes the slower way", "nvidia-smi nvlink -s", evidence=told
        )
    if len(up) > 1 and not any(up.values()):
        return green(name, "no NVLink: the GPUs speak over PCIe", evidence=told)
    return green(name, "all NVLinks are up" if any(up.values()) else "one GPU", evidence=told)
