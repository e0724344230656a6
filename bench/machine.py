"""The machine and the versions beside every figure; nothing that names its owner."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

PACKAGES = ("headway", "torch", "deepspeed", "transformers", "accelerate", "trl", "datasets", "tokenizers", "numpy")


def describe() -> dict[str, Any]:
    return {
        "cpu": _cpu_model(),
        "cores": len(psutil.Process().cpu_affinity() or []),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "load_average": psutil.getloadavg()[0],
    }


def versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def slug(machine: dict[str, Any]) -> str:
    """A file name's part: the processor and its cores."""
    words = "".join(letter if letter.isalnum() else " " for letter in machine["cpu"].lower()).split()
    return "-".join([*words[:6], f"{machine['cores']}c"])


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def matmul_peak(processes: int, port: int) -> float:
    """Floating-point operations a second of large fp32 matrix products, one thread in each of so many processes.

    All measure at once; summed over them; each counts its best of many, as headway's own MFU does.
    """
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    workers = [context.Process(target=_measure, args=(rank, processes, port, results)) for rank in range(processes)]
    for worker in workers:
        worker.start()
    total = sum(results.get() for _ in workers)
    for worker in workers:
        worker.join()
    return total


def _measure(rank: int, processes: int, port: int, results: Any) -> None:
    from headway.train.peak import matmul_flops

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=processes)
    dist.barrier()
    results.put(max(matmul_flops(torch.device("cpu"), torch.float32) for _ in range(3)))
    dist.barrier()
    dist.destroy_process_group()
