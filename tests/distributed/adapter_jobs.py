"""What a rank does in the tests of adapters; imported by forked ranks."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import deepspeed
import torch

from headway.checkpoint.random_state import capture_random_state, restore_random_state
from headway.model.naming import scales_of
from headway.model.quantized import held_layers
from headway.parallel.seam import Engine
from headway.plan.schema import Plan
from headway.task.seam import Task
from headway.train.census import census_of
from headway.train.context import leave
from tests.distributed.engine_jobs import Reader, gathered_state, micro_batches, prepare, train_and_report


def straight_and_resumed(plan: Plan, steps: int, at: int) -> dict[str, Any]:
    """Losses and the last state of a run of `steps`, and of one that goes on from its state `at` in a new engine."""
    engine, task = prepare(plan)
    census = census_of(engine.module, plan)
    straight = _losses(engine, task, plan, range(1, at + 1))
    state, scalars = gathered_state(engine)
    random_state = capture_random_state(engine.device)
    straight += _losses(engine, task, plan, range(at + 1, steps + 1))
    straight_end = gathered_state(engine)
    engine.close()
    again, task = prepare_anew(plan)
    again.restore(Reader(state, scalars))
    restore_random_state(random_state, again.device)
    resumed = _losses(again, task, plan, range(at + 1, steps + 1))
    resumed_end = gathered_state(again)
    again.close()
    leave()
    return {
        "straight": straight,
        "resumed": resumed,
        "straight end": straight_end,
        "resumed end": resumed_end,
        "stored": sorted({name for name, _ in state}),
        "census": census,
    }


def curves_and_resumed(plans: list[Plan], steps: int, resumed: Plan) -> dict[str, Any]:
    """A report a plan with what this rank's engine holds of its base, and what `straight_and_resumed` finds of the
    last, in one process group."""
    reports = [train_and_report(plan, steps, look=held_base) for plan in plans]
    return {"reports": reports, **straight_and_resumed(resumed, 4, 2)}


def held_base(engine: Engine) -> dict[str, Any]:
    """Bytes of packed weights between steps, and each layer's packed bytes and scales when it is gathered."""
    layers = held_layers(engine.module)
    shares = sum(getattr(layer.weight, "ds_tensor", layer.weight).nbytes for layer in layers.values())
    bits: dict[str, bytes] = {}
    for name, layer in layers.items():
        with _whole(layer.weight):
            packed = layer.weight.detach().view(torch.uint8).numpy().tobytes()
        bits[name] = packed + b"".join(scale.numpy().tobytes() for scale in scales_of(layer))
    return {"shares": shares, "bits": bits}


def _whole(weight: Any) -> AbstractContextManager[object]:
    return deepspeed.zero.GatheredParameters([weight]) if hasattr(weight, "ds_tensor") else nullcontext()


def prepare_anew(plan: Plan) -> tuple[Engine, Task]:
    """A second engine in the process group that stands."""
    from headway.model.source import source_of
    from headway.registry import resolve

    task: Task = resolve("task", plan.task.kind)(plan)
    return resolve("strategy", plan.strategy.kind)().prepare(source_of(plan), task, plan), task


def _losses(engine: Engine, task: Task, plan: Plan, steps: range) -> list[float]:
    rate = plan.schedule.peak_lr
    results = [engine.train_step(micro_batches(step, plan, task), rate, lambda _m, _n: True) for step in steps]
    return [result.totals.means()["loss"] for result in results]
