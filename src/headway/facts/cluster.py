"""The machine that the run would use, without torch: psutil, the container's limits, nvidia-smi."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from headway.errors import PlanError
from headway.facts.hardware import find_peak, peak_flops
from headway.facts.schema import ClusterFacts

CGROUP_MOUNT = Path("/sys/fs/cgroup")
CGROUP_SELF = Path("/proc/self/cgroup")
_SMI_SECONDS = 10.0  # a driver that hangs must not hang the plan
_BF16_CAPABILITY = (8, 0)  # bf16 tensor cores came with Ampere


@dataclass(frozen=True)
class Gpu:
    """One device as nvidia-smi lists it."""

    index: int
    uuid: str
    name: str
    memory_bytes: int
    capability: tuple[int, int] | None


def probe_cluster(device: Literal["auto", "cpu", "cuda"] = "auto") -> ClusterFacts:
    """The devices of this machine, within the container's limits and CUDA_VISIBLE_DEVICES.

    `auto` takes the GPUs where there are some that the installed torch can use, else the CPU.

    Raises:
        PlanError: `cuda` was asked for and there is no usable GPU.
    """
    gpus = [] if device == "cpu" else visible_gpus(list_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES"))
    usable = gpus and torch_has_cuda() is not False
    if usable:
        return _gpu_facts(gpus)
    if device == "cuda":
        why = "torch is a CPU build" if gpus else "nvidia-smi lists no GPU that CUDA_VISIBLE_DEVICES leaves visible"
        fix = "install the CUDA build of torch, or write launch.device=cpu" if gpus else "write launch.device=cpu"
        raise PlanError(f"launch.device is cuda, but {why}", fix=fix)
    memory = host_memory_bytes()
    return ClusterFacts(
        device="cpu",
        device_name=_cpu_name(),
        devices_per_host=cpu_cores(),
        device_memory_bytes=memory,
        host_memory_bytes=memory,
    )


def _gpu_facts(gpus: list[Gpu]) -> ClusterFacts:
    """All GPUs are planned as the smallest of them: every rank must fit."""
    smallest = min(gpus, key=lambda gpu: gpu.memory_bytes)
    bf16 = all((gpu.capability or (0, 0)) >= _BF16_CAPABILITY for gpu in gpus)
    return ClusterFacts(
        device="cuda",
        device_name=smallest.name,
        devices_per_host=len(gpus),
        device_memory_bytes=smallest.memory_bytes,
        host_memory_bytes=host_memory_bytes(),
        bf16=bf16,
        matmul_flops=peak_flops(smallest.name, "bf16" if bf16 else "fp32"),
    )


def list_gpus() -> list[Gpu]:
    """Every GPU that nvidia-smi lists; none where it is absent, fails or does not answer in time."""
    fields = "index,uuid,name,memory.total"
    text = _nvidia_smi(f"{fields},compute_cap")
    if text is None:  # drivers before 510 do not know compute_cap; the table knows the common devices
        text = _nvidia_smi(fields)
    return [_read_gpu(line) for line in (text or "").splitlines() if line.strip()]


def _nvidia_smi(fields: str) -> str | None:
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout if result.returncode == 0 else None


def _read_gpu(line: str) -> Gpu:
    index, uuid, name, mebibytes, *rest = (cell.strip() for cell in line.split(","))
    known = find_peak(name)
    capability = known.capability if known else None
    if rest and (match := re.fullmatch(r"(\d+)\.(\d+)", rest[0])):
        capability = (int(match[1]), int(match[2]))
    memory = (
        int(mebibytes) * 1024**2 if mebibytes.isdigit() else host_memory_bytes()
    )  # "[N/A]": memory shared with host
    return Gpu(int(index), uuid, name, memory, capability)


def visible_gpus(gpus: list[Gpu], visible: str | None) -> list[Gpu]:
    """Those that CUDA_VISIBLE_DEVICES leaves, in its order; as in CUDA, the list ends at the first unknown entry."""
    if visible is None:
        return gpus
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in visible.split(",")):
        found = [gpu for gpu in gpus if _is_named(gpu, entry)]
        if not found:
            break
        chosen.append(found[0])
    return chosen


def _is_named(gpu: Gpu, entry: str) -> bool:
    """CUDA_VISIBLE_DEVICES names a device by its number or by the beginning of its UUID."""
    return entry == str(gpu.index) or (entry.startswith("GPU-") and gpu.uuid.startswith(entry))


def torch_has_cuda() -> bool | None:
    """Whether the installed torch was built with CUDA, read from its version file, not imported; None if unknown."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    built = {name: re.search(rf"^{name}\b[^=\n]*=\s*(\S+)", text, re.MULTILINE) for name in ("cuda", "hip")}
    values = [match[1] for match in built.values() if match]
    return any(value != "None" for value in values) if values else None


def host_memory_bytes() -> int:
    """Memory of this host, or the container's limit where that is lower."""
    total = psutil.virtual_memory().total
    texts = cgroup_values("memory.max", "memory", "memory.limit_in_bytes")
    return min([total, *(limit for text in texts if (limit := _number(text)))])


def cpu_cores() -> int:
    """Cores that this process may use: its affinity, or the container's quota where that is lower; at least one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (psutil.cpu_count() or 1)
    quotas: list[float] = []
    for text in cgroup_values("cpu.max", "", ""):
        quota, _, period = text.partition(" ")
        if quota.isdigit() and period.isdigit():
            quotas.append(int(quota) / int(period))
    v1 = zip(
        cgroup_values("", "cpu", "cpu.cfs_quota_us"),
        cgroup_values("", "cpu", "cpu.cfs_period_us"),
        strict=False,
    )
    quotas += [int(quota) / int(period) for quota, period in v1 if quota.isdigit() and period.isdigit()]
    return max(1, int(min([float(cores), *quotas])))


def cgroup_values(v2_file: str, v1_controller: str, v1_file: str) -> list[str]:
    """The contents of a limit file in this process's group and every group above it, version 2 and version 1.

    A limit may stand at any level. Inside a container the path that the kernel names is often not visible; then the
    mount itself is the container's group.
    """
    files: list[Path] = []
    for line in _read(CGROUP_SELF).splitlines():
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if number == "0" and v2_file:
            files += [folder / v2_file for folder in _levels(CGROUP_MOUNT, group)]
        elif v1_file and v1_controller in controllers.split(","):
            files += [folder / v1_file for folder in _levels(CGROUP_MOUNT / v1_controller, group)]
    return [text for file in dict.fromkeys(files) if (text := _read(file).strip())]


def _levels(mount: Path, group: str) -> list[Path]:
    parts = [part for part in group.split("/") if part and part != ".."]
    return [mount.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _number(text: str) -> int | None:
    """Bytes of a limit; None for `max`. Version 1 writes 'no limit' as a huge number, which `min` drops."""
    return int(text) if text.isdigit() else None


def _cpu_name() -> str:
    match = re.search(r"^model name\s*:\s*(.+)$", _read(Path("/proc/cpuinfo")), re.MULTILINE)
    return match[1].strip() if match else "CPU"
