"""What a live engine holds: whole gradients and moments, bytes of state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from headway.model.naming import named_state
from headway.parallel.deepspeed import DeepSpeedEngine
from headway.parallel.live import moments, torch_optimizer, zero_stage
from headway.parallel.seam import Engine


def full_gradients(engine: Engine) -> Iterator[tuple[str, torch.Tensor]]:
    """Every trainable parameter's averaged gradient, whole, on the host, in fp32; before clipping, inside a step.

    All ranks call it together, where the step's verdict is asked for.
    """
    stage = zero_stage(engine)
    for name, parameter in named_state(engine.module):
        if parameter.requires_grad:
            yield name, _gradient(parameter, stage).detach().float().cpu().clone() / _scale(engine)


def _gradient(parameter: Any, stage: int) -> torch.Tensor:
    if stage == 3:
        return parameter._z3_optimizer.get_fp32_grad_for_param(parameter)
    if stage in (1, 2):
        return parameter.get_full_hp_grad()
    return parameter.grad


def _scale(engine: Engine) -> float:
    return float(getattr(engine.engine.optimizer, "loss_scale", 1.0)) if isinstance(engine, DeepSpeedEngine) else 1.0


def state_bytes(engine: Engine) -> dict[str, int]:
    """Bytes of parameters and of optimizer states (with the master copy) that this rank holds between two steps.

    "kept whole" (ZeRO-3): elements of the largest parameter that was not given back after its use.
    """
    stage = zero_stage(engine)
    parameters: list[Any] = list(engine.module.parameters())
    weights = [parameter.ds_tensor if stage == 3 else parameter for parameter in parameters]
    states = [*moments(_optimizer(engine)), *_master_copies(engine, stage)]
    found = {"parameters": _elements_bytes(weights), "optimizer states": _elements_bytes(states)}
    if stage == 3:
        found["kept whole"] = max((p.ds_numel for p in parameters if p.data.numel() == p.ds_numel > 1), default=0)
    return found


def _elements_bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def gradient_bytes(engine: Engine) -> int:
    """Bytes of every buffer in which this rank holds gradients at this moment."""
    found: list[Any] = []
    for parameter in engine.module.parameters():
        found += [parameter.grad, getattr(parameter, "grad_accum", None)]
    if isinstance(engine, DeepSpeedEngine) and zero_stage(engine) > 0:
        optimizer: Any = engine.engine.optimizer
        for name in ("averaged_gradients", "all_grad_tensors"):
            found += [tensor for group in getattr(optimizer, name, {}).values() for tensor in group or ()]
        found += list(getattr(optimizer, "accumulated_grads_in_cpu", {}).values())
        found += [master.grad for master in _master_copies(engine, zero_stage(engine))]
        found.append(getattr(optimizer, "grad_partitions_flat_buffer", None))
    storages = [tensor.untyped_storage() for tensor in found if isinstance(tensor, torch.Tensor) and tensor.numel() > 1]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _optimizer(engine: Engine) -> torch.optim.Optimizer:
    found = torch_optimizer(engine)
    if found is None:
        raise TypeError(f"{type(engine).__name__} shows no optimizer to weigh")
    return found


def _master_copies(engine: Any, stage: int) -> list[torch.Tensor]:
    if stage == 3:
        return engine.engine.optimizer.fp32_partitioned_groups_flat
    if stage in (1, 2):
        return engine.engine.optimizer.single_partition_of_fp32_groups
    return []
