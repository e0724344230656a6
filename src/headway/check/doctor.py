"""What `headway doctor` runs on one host: the checks of a machine, and imports and speed in processes of their own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from headway.check import machine as limits
from headway.check.checks import LIMIT_SECONDS, MACHINE_CHECKS, side_by_side
from headway.check.host import Machine
from headway.check.importing import try_imports
from headway.check.report import Report, Verdict, green, yellow
from headway.check.secrets import secrets
from headway.check.speed import matmul
from headway.units import format_bytes

_LEAST_DISK_BYTES = 10 * 1024**3
_LEAST_SHM_BYTES = 1 * 1024**3


def examine(machine: Machine | None = None) -> Report:
    """Every check of this host, about as long as importing torch, DeepSpeed and transformers takes."""
    host = machine or Machine()
    with ThreadPoolExecutor(1) as pool:
        imports = pool.submit(try_imports, host.environment)
        work: dict[str, Callable[[], Verdict]] = {
            name: partial(check, name, host) for name, check in MACHINE_CHECKS.items()
        }
        work |= {name: partial(check, name, host) for name, check in _WITHOUT_A_PLAN.items()}
        quick = side_by_side(work, LIMIT_SECONDS)
        found = [*quick.verdicts, *imports.result()]
    if host.nvml.gpus and host.torch is not None and not host.torch.is_cpu:
        found.append(matmul("gpu-speed", host.environment))
    return Report(tuple(found))


def shared_memory(name: str, machine: Machine) -> Verdict:
    """/dev/shm as such: what a plan needs of it is judged with the plan."""
    if not limits.SHARED_MEMORY.is_dir():
        return yellow(name, "there is no /dev/shm", "mount -t tmpfs -o size=8g tmpfs /dev/shm")
    total = limits.shutil.disk_usage(limits.SHARED_MEMORY).total
    if total < _LEAST_SHM_BYTES and (machine.has_gpus or total < 64 * 1024**2):
        fix = "docker run --shm-size=8g (or --ipc=host)"
        return yellow(name, f"/dev/shm has only {format_bytes(total)}: NCCL and DataLoader need more", fix)
    return green(name, f"/dev/shm has {format_bytes(total)}")


def disk(name: str, machine: Machine) -> Verdict:
    """Room where runs would be written."""
    folder: Path = machine.folder.absolute()
    free = limits.shutil.disk_usage(folder).free
    if free < _LEAST_DISK_BYTES:
        what = f"only {format_bytes(free)} are free in {folder}"
        return yellow(name, what, "runs=FOLDER on a larger disk; headway plan says what a run needs")
    return green(name, f"{format_bytes(free)} free", evidence=str(folder))


def open_files(name: str, machine: Machine) -> Verdict:
    return limits.judge_open_files(name)


_WITHOUT_A_PLAN = {"shared-memory": shared_memory, "open-files": open_files, "disk": disk, "secrets": secrets}
