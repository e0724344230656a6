"""Single process and PyTorch's DistributedDataParallel: every rank holds all of the model and its optimizer state."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from headway.model.seam import ModelSource
from headway.parallel.building import build_filled, rank_device
from headway.parallel.compression import PowerState, compress, forget
from headway.parallel.optimizers import build_optimizer, decay_groups, materialise_state, set_learning_rate, step_count
from headway.parallel.seam import Engine, EngineState, Sharding, SliceReader
from headway.parallel.slices import (
    replicated_slices,
    restore_replicated_optimizer,
    restore_weights,
    whole_tensors,
)
from headway.parallel.step import SteppingEngine, Verdict
from headway.plan.schema import Plan
from headway.task.seam import Task

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class TorchEngine(SteppingEngine):
    """fp32 weights; bf16 and fp16 compute under autocast (fp16 with a loss scale)."""

    def __init__(self, module: nn.Module, wrapped: nn.Module, task: Task, plan: Plan):
        self.module, self.model, self.task, self.plan = module, wrapped, task, plan
        self.device = next(module.parameters()).device
        self.optimizer = build_optimizer(plan.optimizer, decay_groups(module, plan.optimizer.weight_decay))
        materialise_state(self.optimizer)  # memory runs out at the start or not at all
        self.compression: PowerState | None = None
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=plan.numerics.precision == "fp16")

    def _precision(self) -> AbstractContextManager[object]:
        if self.plan.numerics.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=_DTYPES[self.plan.numerics.precision])

    def _micro_step(self, last: bool) -> AbstractContextManager[object]:
        if isinstance(self.model, DistributedDataParallel) and not last:
            return self.model.no_sync()
        return nullcontext()

    def _backward(self, objective: torch.Tensor, last: bool) -> None:
        self.scaler.scale(objective).backward()

    def _apply(self, lr: float, verdict: Verdict) -> tuple[float, bool]:
        self.scaler.unscale_(self.optimizer)
        grads = [p.grad for p in self.module.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(grads)
        grad_norm = float(norm)
        set_learning_rate(self.optimizer, lr)
        applied = verdict(grad_norm)
        if applied:
            clip = self.plan.optimizer.clip
            if 0 < clip < grad_norm + 1e-6:
                torch.nn.utils.clip_grads_with_norm_(self.module.parameters(), clip, norm)
            self.scaler.step(self.optimizer)
        elif self.compression is not None and not math.isfinite(grad_norm):
            forget(self.compression)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return grad_norm, applied

    def _used_lr(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def _loss_scale(self) -> float:
        return self.scaler.get_scale() if self.scaler.is_enabled() else 1.0

    def state(self) -> EngineState:
        scalars = {"optimizer_step": step_count(self.optimizer)}
        if self.scaler.is_enabled():
            scalars |= {f"loss_scaler.{k}": float(v) for k, v in self.scaler.state_dict().items()}
        return EngineState(replicated_slices(self.module, self.optimizer), scalars)

    def restore(self, reader: SliceReader, *, weights_only: bool = False) -> None:
        restore_weights(self.module, reader)
        if weights_only:
            return
        restore_replicated_optimizer(self.module, self.optimizer, reader)
        scaler = {k.partition(".")[2]: v for k, v in reader.scalars.items() if k.startswith("loss_scaler.")}
        if self.scaler.is_enabled() and scaler:
            self.scaler.load_state_dict(
                self.scaler.state_dict() | scaler | {"_growth_tracker": int(scaler["_growth_tracker"])}
            )

    def full_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        return whole_tensors(self.module)

    def close(self) -> None:
        self.optimizer.state.clear()


class Single:
    """One process, no process group needed."""

    @staticmethod
    def sharding(stage: int) -> Sharding:
        return Sharding()

    def prepare(self, source: ModelSource, task: Task, plan: Plan) -> Engine:
        module = build_filled(source, rank_device(plan))
        return TorchEngine(module, module, task, plan)


class DDP:
    """A full copy on every rank; gradients are averaged while backward still runs."""

    @staticmethod
    def sharding(stage: int) -> Sharding:
        return Sharding()

    def prepare(self, source: ModelSource, task: Task, plan: Plan) -> Engine:
        device = rank_device(plan)
        module = build_filled(source, device)
        wrapped = DistributedDataParallel(
            module,
            device_ids=[device.index] if device.type == "cuda" else None,
            broadcast_buffers=False,  # nothing in a transformer's buffers changes during training
            gradient_as_bucket_view=True,
        )
        engine = TorchEngine(module, wrapped, task, plan)
        if plan.strategy.compression is not None:
            engine.compression = compress(wrapped, plan.strategy.compression, plan.numerics.seed)
        return engine
