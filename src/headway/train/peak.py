"""What this device can do at best, and how much of it a token needs: the two halves of MFU."""

from __future__ import annotations

import time

import psutil
import torch

from headway.facts.schema import ModelShape

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


def flops_per_token(shape: ModelShape, sequence: int) -> float:
    """Forward and backward operations for one token of a full window.

    6 per matrix weight (Kaplan et al. 2020) plus attention, 6 x layers x heads x head_dim x sequence: half of PaLM's
    12 (Chowdhery et al. 2022, appendix B), since a causal product needs only half. An untied input embedding is a
    look-up, not a product; recomputation by activation checkpointing is not counted (model, not hardware, FLOPs).
    A frozen weight has no gradient of its own: 4 in place of 6.
    """
    lookup = 0 if shape.tied else shape.vocab * shape.hidden
    frozen = max(0, shape.parameters - shape.trainable_parameters - lookup) if shape.adapter else 0
    return 6 * (shape.parameters - lookup) - 2 * frozen + 6 * shape.layers * shape.heads * shape.head_dim * sequence


def memory_bytes(device: torch.device) -> tuple[int, int]:
    """(now, peak) of this process: the allocator's figures on a GPU, the resident set on a CPU."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)
    import resource

    return psutil.Process().memory_info().rss, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
