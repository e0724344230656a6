"""What a rank does in the tests of gradient compression: trains, and counts the bytes of gradients it hands to gloo."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from headway.model.source import source_of
from headway.parallel.ddp import DDP
from headway.parallel.seam import Engine
from headway.plan.schema import Plan
from headway.registry import resolve
from headway.task.seam import Task
from headway.train.context import RankContext, join, leave
from tests.distributed.engine_jobs import micro_batches


class Counted:
    """Counts the bytes of every asynchronous all-reduce: those of gradients, by the hooks or by DDP itself."""

    def __init__(self) -> None:
        self.sent_bytes = 0
        self._reduce = dist.all_reduce

    def __enter__(self) -> Counted:
        def counting(tensor: torch.Tensor, *arguments: Any, **named: Any) -> Any:
            if named.get("async_op"):
                self.sent_bytes += tensor.numel() * tensor.element_size()
            return self._reduce(tensor, *arguments, **named)

        dist.all_reduce = counting
        return self

    def __exit__(self, *_: object) -> None:
        dist.all_reduce = self._reduce


def train_compressed(plans: dict[str, Plan], steps: int) -> dict[str, dict[str, Any]]:
    """Of each plan: losses on fixed batches that repeat, gradient bytes of the last step, and all ranks' weights."""
    context = RankContext.from_environment()
    join(context, next(iter(plans.values())))
    found = {name: _train(plan, steps) for name, plan in plans.items()}
    leave()
    return found


def _train(plan: Plan, steps: int) -> dict[str, Any]:
    task: Task = resolve("task", plan.task.kind)(plan)
    engine: Engine = DDP().prepare(source_of(plan), task, plan)
    losses: list[float] = []
    sent_bytes = 0
    with Counted() as counted:
        for step in range(1, steps + 1):
            before = counted.sent_bytes
            batches = micro_batches(step % 4, plan, task)
            result = engine.train_step(batches, plan.schedule.peak_lr, lambda _means, _norm: True)
            losses.append(result.totals.means()["loss"])
            sent_bytes = counted.sent_bytes - before
    weights = torch.cat([weight.flatten() for _, weight in engine.full_weights()])
    kept_bytes = _kept_bytes(engine)
    poisoned = _poisoned(engine, task, plan) if plan.strategy.compression else None
    engine.close()
    found = {"losses": losses, "sent_bytes": sent_bytes, "weights": weights, "poisoned": poisoned}
    return found | {"kept_bytes": kept_bytes}


def _kept_bytes(engine: Any) -> int:
    """What PowerSGD holds between two steps."""
    state = engine.compression
    kept = [] if state is None else [state.error_dict, state.p_memory_dict, state.q_memory_dict]
    return sum(tensor.numel() * tensor.element_size() for part in kept for tensor in part.values())


def _poisoned(engine: Any, task: Any, plan: Plan) -> tuple[bool, bool]:
    """(whether a step with a gradient that is not finite is applied, whether the next one is)."""
    parameter = next(iter(engine.module.parameters()))
    handle = parameter.register_hook(lambda gradient: gradient * float("nan"))
    bad = engine.train_step(micro_batches(1, plan, task), plan.schedule.peak_lr, lambda _means, _norm: True)
    handle.remove()
    good = engine.train_step(micro_batches(2, plan, task), plan.schedule.peak_lr, lambda _means, _norm: True)
    return bad.applied, good.applied
