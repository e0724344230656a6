"""What a rank does in the engine tests; imported by forked ranks, so it holds functions of plain arguments."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from deepspeed.runtime.zero import partition_parameters

from headway.data.seam import IGNORE, Sample
from headway.model.source import source_of
from headway.parallel.collectives import exchange, world
from headway.parallel.seam import Engine
from headway.plan.schema import Plan
from headway.registry import resolve
from headway.task.seam import Batch, Task
from headway.train.context import RankContext, join, leave, seed_everything
from tests.distributed.plans import SEQUENCE, VOCAB

State = dict[tuple[str, str], torch.Tensor]


class Reader:
    """Whole state in memory, read as a checkpoint is."""

    def __init__(self, state: State, scalars: dict[str, float]):
        self.state, self.scalars = state, scalars

    def read(self, name: str, kind: str, offset: int, length: int) -> torch.Tensor:
        return self.state[name, kind][offset : offset + length]

    def kinds(self, name: str) -> set[str]:
        return {kind for other, kind in self.state if other == name}

    def names(self) -> list[str]:
        return sorted({name for name, _ in self.state})


def samples(step: int, count: int) -> list[Sample]:
    """Windows of two documents and uneven length, some targets masked; a pure function of the step."""
    made = []
    for index in range(count):
        random = np.random.default_rng([step, index])
        length = int(random.integers(5, SEQUENCE + 1))
        border = int(random.integers(2, length - 1))
        tokens = random.integers(0, VOCAB, length, dtype=np.int32)
        labels = random.integers(0, VOCAB, length, dtype=np.int32)
        labels[random.random(length) < 0.2] = IGNORE
        documents = (np.arange(length) >= border).astype(np.int32)
        positions = np.concatenate([np.arange(border), np.arange(length - border)]).astype(np.int32)
        made.append(Sample(index, tokens, labels, positions, documents))
    return made


def micro_batches(step: int, plan: Plan, task: Task) -> list[Batch]:
    """This rank's micro batches, dealt as the loader deals them."""
    empty = np.zeros(0, dtype=np.int32)
    filler = Sample(-1, empty, empty, empty, empty)
    slots = samples(step, plan.batch.global_sequences)
    rank, size = world()
    made = []
    for turn in range(plan.batch.accumulation):
        first = (turn * size + rank) * plan.batch.micro_batch
        rows = [slots[i] if i < len(slots) else filler for i in range(first, first + plan.batch.micro_batch)]
        made.append(task.collate(rows, SEQUENCE))
    return made


def prepare(plan: Plan) -> tuple[Engine, Task]:
    from headway.train import environment

    environment.after_import()
    context = RankContext.from_environment()
    join(context, plan)
    task: Task = resolve("task", plan.task.kind)(plan)
    engine: Engine = resolve("strategy", plan.strategy.kind)().prepare(source_of(plan), task, plan)
    seed_everything(plan.numerics.seed, context.rank)
    return engine, task


def gathered_state(engine: Engine) -> tuple[State, dict[str, float]]:
    """All ranks' slices put together; fails where they overlap or leave a gap."""
    own = engine.state()
    rows = [(s.name, s.kind, s.shape, s.offset, s.data.detach().cpu().clone()) for s in own.slices]
    whole: State = {}
    covered: dict[tuple[str, str], int] = {}
    for name, kind, shape, offset, data in [row for rank_rows in exchange(rows) for row in rank_rows]:
        key = (name, kind)
        target = whole.setdefault(key, torch.full((math.prod(shape),), torch.nan))
        target[offset : offset + data.numel()] = data
        covered[key] = covered.get(key, 0) + data.numel()
    assert all(covered[key] == tensor.numel() for key, tensor in whole.items()), "slices overlap or leave gaps"
    return whole, own.scalars


def train_and_report(
    plan: Plan, steps: int, refused: int | None = None, look: Callable[[Engine], Any] | None = None
) -> dict[str, Any]:
    """Losses, norms, final weights and gathered state; the step `refused` is discarded by the guard.

    look: its finding is `seen`, of the engine after the last step.
    """
    engine, task = prepare(plan)
    counted = _count_exchanges(engine, plan)
    losses, norms, applied = [], [], []
    for step in range(1, steps + 1):
        result = engine.train_step(
            micro_batches(step, plan, task), plan.schedule.peak_lr, lambda _m, _n, s=step: s != refused
        )
        losses.append(result.totals.means()["loss"])
        norms.append(result.grad_norm)
        applied.append(result.applied)
    evaluation = engine.evaluate(micro_batches(99, plan, task)).means()
    state, scalars = gathered_state(engine)
    weights = {name: tensor.clone() for name, tensor in engine.full_weights()}
    seen = look(engine) if look else None
    engine.close()
    return {
        "seen": seen,
        "losses": losses,
        "norms": norms,
        "applied": applied,
        "evaluation": evaluation["loss"],
        "state": state,
        "scalars": scalars,
        "weights": weights,
        "counted": counted,
    }


def train_each(plans: list[Plan], steps: int) -> list[dict[str, Any]]:
    """One report a plan, in one process group; the plans differ in what does not make another kind of engine."""
    reports = [train_and_report(plan, steps) for plan in plans]
    leave()
    return reports


def go_on(plan: Plan, state: State, scalars: dict[str, float], steps: range) -> list[float]:
    """The losses of `steps` after restoring a state that any strategy wrote."""
    engine, task = prepare(plan)
    engine.restore(Reader(state, scalars))
    losses = [
        engine.train_step(micro_batches(step, plan, task), plan.schedule.peak_lr, lambda _m, _n: True).totals.means()[
            "loss"
        ]
        for step in steps
    ]
    engine.close()
    leave()
    return losses


def _count_exchanges(engine: Any, plan: Plan) -> dict[str, int]:
    """Counts, as they happen, gradient buckets flushed and (stage 3) gathers of partitioned parameters."""
    counted = {"buckets": 0, "gathers": 0}
    if plan.strategy.kind != "deepspeed" or plan.strategy.stage == 0:
        return counted
    optimizer = engine.engine.optimizer
    if plan.strategy.stage < 3:
        _count_calls(optimizer, "reduce_ipg_grads", counted, "buckets")
        return counted
    _count_calls(optimizer, "_DeepSpeedZeroOptimizer_Stage3__reduce_and_partition_ipg_grads", counted, "buckets")
    _count_calls(partition_parameters, "_dist_allgather_fn", counted, "gathers")
    return counted


def _count_calls(owner: Any, name: str, counted: dict[str, int], key: str) -> None:
    call = getattr(owner, name)

    def counting(*arguments: Any, **named: Any) -> Any:
        counted[key] += 1
        return call(*arguments, **named)

    setattr(owner, name, counting)


def outlive_groups(plan: Plan, folder: Path, times: int) -> int:
    """`times` over: a DDP engine, one step and the end of its process group; each engine goes after its group."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    for time in range(times):
        dist.init_process_group("gloo", f"file://{folder}/group-{time}", rank=rank, world_size=world)
        engine, task = prepare(plan)
        engine.train_step(micro_batches(1, plan, task), plan.schedule.peak_lr, lambda _m, _n: True)
        leave()
        del engine
    return times
