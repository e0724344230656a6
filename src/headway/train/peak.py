"""What this device can do at best, and what it holds."""

from __future__ import annotations

import time

import psutil
import torch

_MEASURE_SECONDS = 0.2


def matmul_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Measured peak of a large matrix product on this rank's device and threads, in floating-point operations a second.

    All ranks measure at the same time, as they compute at the same time. The best of several products counts.
    The factors come from a generator of their own: the global one is training's, and a resumed run must find it as
    the run found it that never stopped.
    """
    n = 8192 if device.type == "cuda" else 1024
    generator = torch.Generator(device).manual_seed(0)
    a = torch.randn(n, n, device=device, dtype=dtype, generator=generator)
    best, started = float("inf"), time.perf_counter()
    while time.perf_counter() - started < _MEASURE_SECONDS:
        _synchronize(device)
        before = time.perf_counter()
        torch.mm(a, a)
        _synchronize(device)
        best = min(best, time.perf_counter() - before)
    return 2 * n**3 / best


def memory_bytes(device: torch.device) -> tuple[int, int]:
    """(now, peak) of this process: the allocator's figures on a GPU, the resident set on a CPU."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)
    import resource

    return psutil.Process().memory_info().rss, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
