"""The few collectives that Headway issues itself; with one process and no group they are the identity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist


def world() -> tuple[int, int]:
    """(rank, world size); (0, 1) without a process group."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def sum_over_ranks(values: Mapping[str, float], device: torch.device) -> dict[str, float]:
    """Add each named value over all ranks, in float64; every rank gives the same names in the same order."""
    names = list(values)
    tensor = torch.tensor([values[name] for name in names], dtype=torch.float64, device=device)
    if world()[1] > 1:
        dist.all_reduce(tensor)
    return dict(zip(names, tensor.tolist(), strict=True))


def barrier() -> None:
    if world()[1] > 1:
        dist.barrier()


def exchange(value: Any) -> list[Any]:
    """Every rank's (picklable) value in rank order, on every rank."""
    size = world()[1]
    if size == 1:
        return [value]
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, value)
    return gathered
