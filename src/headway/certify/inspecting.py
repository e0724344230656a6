"""What a live engine holds: whole gradients, bytes of state, and the settings that it was really built with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from headway.parallel.ddp import TorchEngine
from headway.parallel.deepspeed import DeepSpeedEngine
from headway.parallel.seam import Engine


def full_gradients(engine: Engine) -> Iterator[tuple[str, torch.Tensor]]:
    """Every trainable parameter's averaged gradient, whole, on the host, in fp32; before clipping, inside a step.

    All ranks call it together, where the step's verdict is asked for.
    """
    stage = zero_stage(engine)
    for name, parameter in engine.module.named_parameters():
        if parameter.requires_grad:
            yield name, _gradient(parameter, stage).detach().float().cpu().clone() / _scale(engine)


def zero_stage(engine: Engine) -> int:
    """0 for engines that partition nothing."""
    return engine.engine.zero_optimization_stage() if isinstance(engine, DeepSpeedEngine) else 0


def _gradient(parameter: Any, stage: int) -> torch.Tensor:
    if stage == 3:
        return parameter._z3_optimizer.get_fp32_grad_for_param(parameter)
    if stage in (1, 2):
        return parameter.get_full_hp_grad()
    return parameter.grad


def _scale(engine: Engine) -> float:
    return float(getattr(engine.engine.optimizer, "loss_scale", 1.0)) if isinstance(engine, DeepSpeedEngine) else 1.0


def state_bytes(engine: Engine) -> dict[str, int]:
    """Bytes of parameters and of optimizer states (with the master copy) that this rank holds."""
    stage = zero_stage(engine)
    parameters: list[Any] = list(engine.module.parameters())
    if stage == 3:
        weights = sum(p.ds_tensor.numel() * p.ds_tensor.element_size() for p in parameters)
    else:
        weights = sum(p.numel() * p.element_size() for p in parameters)
    optimizer = _torch_optimizer(engine)
    states = sum(
        tensor.numel() * tensor.element_size()
        for state in optimizer.state.values()
        for tensor in state.values()
        if isinstance(tensor, torch.Tensor) and tensor.numel() > 1
    )
    masters = _master_copies(engine, stage)
    return {"parameters": weights, "optimizer states": states + sum(m.numel() * m.element_size() for m in masters)}


def _torch_optimizer(engine: Any) -> torch.optim.Optimizer:
    return engine.optimizer if isinstance(engine, TorchEngine) else engine.partition.torch_optimizer


def _master_copies(engine: Any, stage: int) -> list[torch.Tensor]:
    if stage == 3:
        return engine.engine.optimizer.fp32_partitioned_groups_flat
    if stage in (1, 2):
        return engine.engine.optimizer.single_partition_of_fp32_groups
    return []


def settings(engine: Engine) -> dict[str, Any]:
    """The engine's own view of what the plan asked for."""
    dtypes = sorted({str(p.dtype).removeprefix("torch.") for p in engine.module.parameters()})
    found: dict[str, Any] = {"weights": dtypes, "optimizer": type(_torch_optimizer(engine)).__name__}
    if isinstance(engine, DeepSpeedEngine):
        inner = engine.engine
        offload = inner.zero_offload_optimizer()
        parameters = inner.zero_offload_param()
        found |= {
            "stage": inner.zero_optimization_stage(),
            "clip": float(inner.gradient_clipping()),
            "accumulation": inner.gradient_accumulation_steps(),
            "micro_batch": inner.train_micro_batch_size_per_gpu(),
            "world": inner.dp_world_size,
            "offload_optimizer": offload is not None and str(offload.device.value) != "none",
            "offload_parameters": parameters is not None and str(parameters.device.value) != "none",
        }
    return found
