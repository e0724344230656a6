"""DeepSpeed ZeRO 0 to 3, with the optimizer and the parameters in host memory where the plan says so."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import deepspeed
import torch
from deepspeed.utils import (
    safe_get_full_fp32_param,
    safe_get_local_fp32_param,
    safe_get_local_optimizer_state,
    safe_set_local_fp32_param,
    safe_set_local_optimizer_state,
)
from torch import nn

from headway.errors import PlanError, Problem
from headway.model.huggingface import DTYPES
from headway.model.naming import named_state
from headway.model.seam import ModelSource
from headway.model.skeleton import parameters_on_meta
from headway.parallel.building import Made, build_filled, materialise, rank_device
from headway.parallel.collectives import world
from headway.parallel.deepspeed_config import deepspeed_config
from headway.parallel.optimizers import (
    build_optimizer,
    decay_groups,
    materialise_state,
    set_learning_rate,
    set_step_count,
    step_count,
)
from headway.parallel.seam import Engine, EngineState, Sharding, Slice, SliceReader
from headway.parallel.slices import (
    buffer_slices,
    check_names,
    persistent_buffers,
    replicated_slices,
    restore_replicated_optimizer,
    restore_weights,
    whole_slice,
    whole_tensors,
)
from headway.parallel.step import SteppingEngine, Verdict
from headway.plan.schema import Plan
from headway.task.seam import Task

_SCALER_FIELDS = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


class DeepSpeedEngine(SteppingEngine):
    """One DeepSpeed engine. Everything that depends on the ZeRO stage is in its `_Partition`."""

    def __init__(self, engine: Any, task: Task, plan: Plan):
        self.engine, self.model, self.task, self.plan = engine, engine, task, plan
        self.module: nn.Module = engine.module
        self.device = torch.device(engine.device)
        self.partition = _partition(engine, plan.strategy.stage)

    def _precision(self) -> AbstractContextManager[object]:
        return nullcontext()

    def _micro_step(self, last: bool) -> AbstractContextManager[object]:
        self.engine.set_gradient_accumulation_boundary(last)
        return nullcontext()

    def _backward(self, objective: torch.Tensor, last: bool) -> None:
        self.engine.backward(objective, scale_wrt_gas=False)

    def _apply(self, lr: float, verdict: Verdict) -> tuple[float, bool]:
        set_learning_rate(self.engine.optimizer, lr)
        return self.partition.step(verdict)

    def _used_lr(self) -> float:
        return float(self.engine.optimizer.param_groups[0]["lr"])

    def _loss_scale(self) -> float:
        return float(getattr(self.engine.optimizer, "loss_scale", 1.0))

    def state(self) -> EngineState:
        scalars = {"optimizer_step": step_count(self.partition.torch_optimizer)}
        scaler = getattr(self.engine.optimizer, "loss_scaler", None)
        scalars |= {f"loss_scaler.{f}": float(getattr(scaler, f)) for f in _SCALER_FIELDS if hasattr(scaler, f)}
        return EngineState(self.partition.slices(), scalars)

    def restore(self, reader: SliceReader, *, weights_only: bool = False) -> None:
        check_names(self.module, reader)
        self.partition.restore(reader, weights_only=weights_only)
        scaler = getattr(self.engine.optimizer, "loss_scaler", None)
        for field in _SCALER_FIELDS:
            value = reader.scalars.get(f"loss_scaler.{field}")
            if value is not None and hasattr(scaler, field):
                setattr(scaler, field, value if field == "cur_scale" else int(value))

    def full_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self.partition.full_weights()

    def close(self) -> None:
        self.engine.destroy()


class _Partition:
    """Stage 0: nothing is partitioned; DeepSpeed's plain path, with torch's own optimizer."""

    def __init__(self, engine: Any):
        self.engine = engine
        self.module: nn.Module = engine.module
        self._materialise()

    def _materialise(self) -> None:
        """Create all optimizer state now: memory runs out at the start or not at all, and restore finds every kind."""
        materialise_state(self.torch_optimizer)

    @property
    def torch_optimizer(self) -> torch.optim.Optimizer:
        return self.engine.basic_optimizer

    def step(self, verdict: Verdict) -> tuple[float, bool]:
        grads = [p.grad for p in self.module.parameters() if p.grad is not None]
        grad_norm = float(torch.nn.utils.get_total_norm(grads))  # stage 0 reports none of its own
        applied = verdict(grad_norm)
        if applied:
            self.engine.step()
        else:
            self.engine.zero_grad()
        return grad_norm, applied

    def slices(self) -> Iterator[Slice]:
        return replicated_slices(self.module, self.torch_optimizer)

    def restore(self, reader: SliceReader, *, weights_only: bool) -> None:
        restore_weights(self.module, reader)
        if not weights_only:
            restore_replicated_optimizer(self.module, self.torch_optimizer, reader)

    def full_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        return whole_tensors(self.module)


class _ZeroPartition(_Partition):
    """What the partitioning stages share: the verdict is spoken where DeepSpeed computes its gradient norm.

    DeepSpeed computes the norm and steps in one call. An infinite norm makes it discard the step by its own overflow
    path (gradients, buffers and loss scale are left as after an overflow), so a refused step is reported to it as one.
    """

    norm_method: str

    def __init__(self, engine: Any):
        super().__init__(engine)
        self._verdict: Verdict | None = None
        self._grad_norm = math.nan
        self._applied = False
        measure = getattr(engine.optimizer, self.norm_method)

        def measured(*args: Any, **kwargs: Any) -> Any:
            return self._judge(measure(*args, **kwargs))

        setattr(engine.optimizer, self.norm_method, measured)

    @property
    def torch_optimizer(self) -> torch.optim.Optimizer:
        return self.engine.optimizer.optimizer

    def step(self, verdict: Verdict) -> tuple[float, bool]:
        self._verdict, self._grad_norm, self._applied = verdict, math.inf, False
        self.engine.step()
        self._verdict = None
        return self._grad_norm, self._applied

    def _judge(self, norm: Any) -> Any:
        if self._verdict is None:  # DeepSpeed asking for itself, outside of a step
            return norm
        self._grad_norm = float(norm) / float(self.engine.optimizer.loss_scale)
        self._applied = self._verdict(self._grad_norm)
        return norm if self._applied else torch.full_like(torch.as_tensor(norm), math.inf)

    def restore(self, reader: SliceReader, *, weights_only: bool) -> None:
        with torch.no_grad():
            for name, parameter in named_state(self.module):
                self._restore_parameter(name, parameter, reader, weights_only)
            for name, buffer in persistent_buffers(self.module).items():
                buffer.copy_(reader.read(name, "buffer", 0, buffer.numel()).view(buffer.shape))
        if not weights_only:
            set_step_count(self.torch_optimizer, reader.scalars["optimizer_step"])

    def _restore_parameter(self, name: str, parameter: Any, reader: SliceReader, weights_only: bool) -> None:
        raise NotImplementedError

    def full_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in named_state(self.module):
            yield name, self._whole(parameter)
        for name, buffer in persistent_buffers(self.module).items():
            yield name, buffer.detach().cpu()

    def _whole(self, parameter: Any) -> torch.Tensor:
        raise NotImplementedError


class _FlatPartition(_ZeroPartition):
    """Stages 1 and 2: each rank owns a run of the flattened parameters; `_hp_mapping` says which."""

    norm_method = "scaled_global_norm"

    def _materialise(self) -> None:
        self._detach_flat_groups()
        # DeepSpeed links fragments to optimizer state after the first group's first step, when the other groups have
        # none yet, and never again: their moments would be missing from every checkpoint.
        materialise_state(self.torch_optimizer)
        self.engine.optimizer._hp_optimizer_states_linked = False
        self.engine.optimizer._lazy_init_hp_params_optimizer_state()

    def _detach_flat_groups(self) -> None:
        """Before 0.19 the flat weights carry autograd history, and torch refuses to gather into them."""
        optimizer = self.engine.optimizer
        for index, flat in enumerate(optimizer.bit16_groups_flat):
            if flat.requires_grad:
                optimizer.bit16_groups_flat[index] = flat.detach()
                parts = optimizer.get_data_parallel_partitions(optimizer.bit16_groups_flat[index], index)
                optimizer.parallel_partitioned_bit16_groups[index] = parts

    def slices(self) -> Iterator[Slice]:
        rank, size = world()
        for index, (name, parameter) in enumerate(named_state(self.module)):
            if not parameter.requires_grad:
                if index % size == rank:
                    yield whole_slice(name, "weight", parameter)
                continue
            mapping: Any = parameter._hp_mapping  # pyright: ignore[reportAttributeAccessIssue]
            if mapping is None:  # this rank owns nothing of it
                continue
            shape, offset = tuple(parameter.shape), mapping.lp_fragment_address.start
            yield Slice(name, "weight", shape, offset, mapping.hp_fragment.detach())
            for kind in sorted(mapping.optim_fragment or {}):
                yield Slice(name, kind, shape, offset, mapping.optim_fragment[kind].detach())
        if rank == 0:
            yield from buffer_slices(self.module)

    def _restore_parameter(self, name: str, parameter: Any, reader: SliceReader, weights_only: bool) -> None:
        parameter.copy_(reader.read(name, "weight", 0, parameter.numel()).view(parameter.shape))
        mapping = getattr(parameter, "_hp_mapping", None)
        if mapping is None:
            return
        start, length = mapping.lp_fragment_address.start, mapping.lp_fragment_address.numel
        mapping.hp_fragment.copy_(reader.read(name, "weight", start, length))
        if not weights_only:
            for kind, fragment in mapping.optim_fragment.items():
                fragment.copy_(reader.read(name, kind, start, length))

    def _whole(self, parameter: Any) -> torch.Tensor:
        if parameter.dtype == torch.float32 or not parameter.requires_grad:
            return parameter.detach().cpu()
        master = safe_get_full_fp32_param(parameter)
        return (parameter if master is None else master).detach().cpu()


class _ShardedPartition(_ZeroPartition):
    """Stage 3: each rank keeps an equal run of every parameter, the last one padded."""

    norm_method = "_get_norm_groups"

    def _judge(self, norm: Any) -> Any:
        if self._verdict is None:
            return norm
        values = [float(group) for group in norm]
        invalid = any(value < 0 or not math.isfinite(value) for value in values)
        total = math.inf if invalid else math.sqrt(math.fsum(value * value for value in values))
        self._grad_norm = total / float(self.engine.optimizer.loss_scale)
        self._applied = self._verdict(self._grad_norm)
        return norm if self._applied else [torch.full_like(torch.as_tensor(norm[0]), math.inf)]

    def _materialise(self) -> None:
        # Outside of a step the torch optimizer's groups are empty: DeepSpeed hands it one flat group at a time.
        self.engine.optimizer._set_fp32_optimizer_param_groups()
        materialise_state(self.torch_optimizer)
        self.engine.optimizer._clear_fp32_optimizer_param_groups()

    def _run(self, parameter: Any) -> tuple[int, int]:
        """(offset, length) of this rank's run of the parameter, without the padding."""
        rank, size = world()
        whole = int(parameter.ds_numel)
        each = -(-whole // size)
        return min(rank * each, whole), max(0, min(each, whole - rank * each))

    def _kinds(self) -> list[str]:
        optimizer = self.torch_optimizer
        flat = next(iter(optimizer.state), None)
        if flat is None:
            return []
        state = optimizer.state[flat]
        return sorted(k for k, v in state.items() if isinstance(v, torch.Tensor) and v.shape == flat.shape)

    def slices(self) -> Iterator[Slice]:
        kinds = self._kinds()
        for name, parameter in named_state(self.module):
            offset, length = self._run(parameter)
            if length == 0:
                continue
            shape = tuple(parameter.ds_shape)  # pyright: ignore[reportAttributeAccessIssue]
            if not parameter.requires_grad:
                yield Slice(name, "weight", shape, offset, parameter.ds_tensor.detach().view(-1)[:length])  # pyright: ignore
                continue
            yield Slice(name, "weight", shape, offset, safe_get_local_fp32_param(parameter)[:length])
            for kind in kinds:
                yield Slice(name, kind, shape, offset, safe_get_local_optimizer_state(parameter, kind)[:length])
        if world()[0] == 0:
            yield from buffer_slices(self.module)

    def _restore_parameter(self, name: str, parameter: Any, reader: SliceReader, weights_only: bool) -> None:
        with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
            if world()[0] == 0:
                parameter.copy_(reader.read(name, "weight", 0, parameter.numel()).view(parameter.shape))
        if not parameter.requires_grad:
            return
        offset, length = self._run(parameter)
        padded = int(parameter.ds_tensor.numel())

        def mine(kind: str) -> torch.Tensor:
            run = torch.zeros(padded, dtype=torch.float32)
            if length:
                run[:length] = reader.read(name, kind, offset, length)
            return run

        safe_set_local_fp32_param(parameter, mine("weight"))
        for kind in [] if weights_only else self._kinds():
            safe_set_local_optimizer_state(parameter, mine(kind), kind)

    def _whole(self, parameter: Any) -> torch.Tensor:
        master = safe_get_full_fp32_param(parameter) if parameter.requires_grad else None
        if master is not None:
            return master.detach().cpu()
        with deepspeed.zero.GatheredParameters([parameter]):
            return parameter.detach().cpu().clone()


def _partition(engine: Any, stage: int) -> _Partition:
    return {0: _Partition, 1: _FlatPartition, 2: _FlatPartition, 3: _ShardedPartition}[stage](engine)


class DeepSpeed:
    """A row of the registry: kind `deepspeed`, stage 0 to 3."""

    @staticmethod
    def sharding(stage: int) -> Sharding:
        return Sharding(parameters=stage >= 3, gradients=stage >= 2, optimizer=stage >= 1)

    def prepare(self, source: ModelSource, task: Task, plan: Plan) -> Engine:
        if plan.strategy.stage == 0 and plan.numerics.precision != "fp32":
            rule = f"DeepSpeed stage 0 in {plan.numerics.precision} takes another optimizer path and other losses"
            raise PlanError(problems=[Problem("strategy.stage", rule, 0, "write strategy: ddp, or stage 1 or more")])
        config = deepspeed_config(plan)
        if plan.strategy.stage < 3 or getattr(source, "builds_whole", False):
            module = self._build(source, plan)
        elif getattr(source, "fills_first", False):
            module = self._build_filled_first(source, plan, config)
        else:
            module = self._build_sharded(source, config)
        optimizer = build_optimizer(plan.optimizer, decay_groups(module, plan.optimizer.weight_decay))
        engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=config)  # pyright: ignore
        return DeepSpeedEngine(engine, task, plan)

    def _build(self, source: ModelSource, plan: Plan) -> nn.Module:
        return build_filled(source, rank_device(plan))

    def _build_sharded(self, source: ModelSource, config: dict[str, Any]) -> nn.Module:
        """Built partition by partition and filled module by module: no rank ever holds the whole model."""
        with deepspeed.zero.Init(config_dict_or_path=config):
            module = source.build()
        for name, part in module.named_modules():
            direct = list(part.parameters(recurse=False))
            with deepspeed.zero.GatheredParameters(direct, modifier_rank=0):
                source.fill(name, part)
        source.prepare_for_training(module)
        return module

    def _build_filled_first(self, source: ModelSource, plan: Plan, config: dict[str, Any]) -> nn.Module:
        """Built without memory; each module is filled whole and partitioned before the next is given any."""
        spreading = deepspeed.zero.Init(config_dict_or_path=config)
        with spreading:  # leaves its own linear function behind, which keeps no view of a gathered weight
            pass
        with parameters_on_meta():
            module = source.build()
        device, dtype = rank_device(plan), DTYPES[plan.numerics.precision]
        made: Made = {}
        for name, part in module.named_modules():
            materialise(part, device, dtype, made)
            source.fill(name, part)
            spreading._convert_to_zero_parameters(part.parameters(recurse=False))
        source.prepare_for_training(module)
        return module
