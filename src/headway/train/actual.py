"""What a run really took, for the record: memory by item where the allocator tells, step time, tokens a second."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

import torch

from headway.model.naming import scales_of
from headway.parallel.collectives import exchange
from headway.parallel.seam import Engine
from headway.run.journal import read
from headway.run.paths import RunDir
from headway.train.peak import memory_bytes

_UNSTEADY = 2  # the first steps fill caches and allocate


def held_bytes(engine: Engine) -> dict[str, dict[str, int]]:
    """Bytes that this rank's live tensors hold, by the plan's item and place ('device', 'host').

    A storage counts once: under DeepSpeed the weights are views of flat buffers, and a master copy is what the
    optimizer steps. Gradients are freed between steps, so they are not among them.
    """
    seen: set[int] = set()
    weights = [getattr(p, "ds_tensor", None) if hasattr(p, "ds_tensor") else p for p in engine.module.parameters()]
    scales = [tensor for part in engine.module.modules() for tensor in scales_of(part)]
    found = {"parameters": _sizes([*(w for w in weights if w is not None), *scales], seen)}
    optimizer: Any = getattr(engine, "optimizer", None)
    if optimizer is None and hasattr(engine, "partition"):
        optimizer = engine.partition.torch_optimizer  # pyright: ignore[reportAttributeAccessIssue]
    if optimizer is not None:
        stepped = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        stepped += _masters(engine)
        states = [t for state in optimizer.state.values() for t in state.values() if isinstance(t, torch.Tensor)]
        found["optimizer states"] = _sizes([*stepped, *states], seen)
    return found


def _masters(engine: Any) -> list[torch.Tensor]:
    """DeepSpeed's fp32 partitions, which stage 3 hands to the optimizer only while it steps."""
    zero = getattr(getattr(engine, "engine", None), "optimizer", None)
    names = ("fp32_partitioned_groups_flat", "single_partition_of_fp32_groups")
    return [tensor for name in names for tensor in getattr(zero, name, [])]


def _sizes(tensors: Iterable[torch.Tensor], seen: set[int]) -> dict[str, int]:
    sizes = {"device": 0, "host": 0}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            sizes["host" if tensor.device.type == "cpu" and torch.cuda.is_available() else "device"] += storage.nbytes()
    return sizes


def gather_actual(engine: Engine, run: RunDir, seconds: float) -> dict[str, Any]:
    """The account of this attempt, equal on all ranks; collective.

    seconds: since this process began, all of it. Step time and speed are medians over the steps of metrics.jsonl.
    """
    device = engine.device
    items = exchange(held_bytes(engine))
    peaks = exchange(memory_bytes(device)[1])
    reserved = torch.cuda.max_memory_reserved(device) if device.type == "cuda" else 0
    lines = read(run.metrics, latest_per_step=True)[_UNSTEADY:]
    whole = [
        line["step_seconds"] + line["data_wait_seconds"] + line["overhead_seconds"]
        for line in lines
        if "step_seconds" in line
    ]
    speeds = [line["tokens_per_second"] for line in lines if "tokens_per_second" in line]
    return {
        "steps": len(whole),
        "step_seconds": statistics.median(whole) if whole else None,
        "tokens_per_second": statistics.median(speeds) if speeds else None,
        "wall_seconds": seconds,
        "processes": len(peaks),
        "memory_kind": "allocated" if device.type == "cuda" else "resident set",
        "memory_peak_bytes": max(peaks),
        "memory_reserved_bytes": max(exchange(reserved)) or None,
        "memory_items": {
            name: {place: max(rank[name][place] for rank in items) for place in ("device", "host")} for name in items[0]
        },
    }
