"""What a live engine says of itself: the settings that it was really built with."""

from __future__ import annotations

from typing import Any

import torch

from headway.model.naming import base_shape
from headway.parallel.collectives import world
from headway.parallel.seam import Engine


def deepspeed_engine(engine: Engine) -> Any | None:
    """The DeepSpeed engine inside, None where there is none; imports nothing of it."""
    inner: Any = getattr(engine, "engine", None)
    return inner if hasattr(inner, "zero_optimization_stage") else None


def zero_stage(engine: Engine) -> int:
    """0 for engines that partition nothing."""
    inner = deepspeed_engine(engine)
    return inner.zero_optimization_stage() if inner is not None else 0


def torch_optimizer(engine: Any) -> torch.optim.Optimizer | None:
    """The optimizer that steps; None of an engine of the user's own that shows none."""
    partition = getattr(engine, "partition", None)
    return getattr(engine, "optimizer", None) if partition is None else partition.torch_optimizer


def moments(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The optimizer's element-wise state; counters are left out."""
    every = [value for state in optimizer.state.values() for value in state.values()]
    return [value for value in every if isinstance(value, torch.Tensor) and value.numel() > 1]


def settings(engine: Engine) -> dict[str, Any]:
    """The engine's own view of what the plan asked for."""
    wide = [part for part in engine.module.modules() if base_shape(part) is None]  # not the layers held in 4 bits
    dtypes = {str(p.dtype).removeprefix("torch.") for part in wide for p in part.parameters(recurse=False)}
    found: dict[str, Any] = {"weights": sorted(dtypes), "world": world()[1]}
    optimizer = torch_optimizer(engine)
    if optimizer is not None:
        found["optimizer"] = type(optimizer).__name__
        found["states_on"] = sorted({tensor.device.type for tensor in moments(optimizer)})
    inner = deepspeed_engine(engine)
    if inner is not None:
        found |= {
            "stage": inner.zero_optimization_stage(),
            "clip": float(inner.gradient_clipping()),
            "accumulation": inner.gradient_accumulation_steps(),
            "micro_batch": inner.train_micro_batch_size_per_gpu(),
            "world": inner.dp_world_size,
            "offload_optimizer": _is_offloaded(inner.zero_offload_optimizer()),
            "offload_parameters": _is_offloaded(inner.zero_offload_param()),
        }
    return found


def _is_offloaded(section: Any) -> bool:
    """Whether DeepSpeed's section names a device (an enum, or its plain name in older releases)."""
    return section is not None and str(getattr(section.device, "value", section.device)) != "none"
