"""After memory ran out: the planner's next setting of the same run that needs clearly less, as words to paste."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from headway.api import preparing
from headway.errors import HeadwayError
from headway.plan.files import read_plan
from headway.plan.memory import used_bytes
from headway.plan.schema import Plan
from headway.run.paths import RunDir
from headway.run.record import read_record

# The plan held this run to fit and it did not: another that needs nearly as much would fail the same way.
_CLEARLY_LESS = 0.85


def relief(run: RunDir, *, host: bool) -> str:
    """`run.yaml KEY=VALUE ...`: the cheapest change that needs clearly less; an empty string where none is found.

    host: of the host's memory; else of the device's.
    """
    try:
        plan = read_plan(run.plan)
        origin = read_record(run).get("run_file", {})
        path = Path(origin.get("path", run.config))
        before: list[str] = list(origin.get("overrides", ()))
        if preparing.reload(run, path, before).config.model.factory is not None:
            return ""  # an own model is counted by building it: not for the sake of a hint
        limit = _CLEARLY_LESS * _needed(plan, host)
        for change in _changes(plan, host):
            if _fits(run, path, [*before, *change], plan, limit, host):
                return shlex.join([str(path), *before, *change])
    except (HeadwayError, OSError, ValueError, KeyError):
        return ""
    return ""


def _fits(run: RunDir, path: Path, words: list[str], plan: Plan, limit: float, host: bool) -> bool:
    try:
        made = preparing.plan_run(preparing.reload(run, path, words), plan.facts, plan.name)
    except HeadwayError:
        return False
    return _needed(made, host) <= limit


def _needed(plan: Plan, host: bool) -> float:
    """Bytes of one process on its device, or of the host by all its processes."""
    if host and plan.cluster.device != "cpu":
        return plan.memory.host_bytes * plan.launch.processes
    return used_bytes(plan.memory, plan.cluster)


def _changes(plan: Plan, host: bool) -> Iterator[list[str]]:
    """Overrides from the cheapest in speed to the dearest, each alone and then with those before it."""
    steps: list[str] = []
    if host and plan.strategy.offload_parameters:
        steps.append("strategy.offload.parameters=none")
    if host and plan.strategy.offload_optimizer:
        steps.append("strategy.offload.optimizer=none")
    if plan.batch.micro_batch > 1:
        steps.append(f"train.micro_batch={plan.batch.micro_batch // 2}")
    if not plan.numerics.activation_checkpointing:
        steps.append("train.activation_checkpointing=true")
    if plan.launch.processes > 1 and plan.strategy.stage < 3:
        steps.append("strategy=zero-3")
    if not host and not plan.strategy.offload_optimizer and plan.cluster.device != "cpu":
        steps.append("strategy={kind: zero-3, offload: cpu}")
    for position, step in enumerate(steps):
        yield [step]
        if position:
            before = [one for one in steps[:position] if one.partition("=")[0] != step.partition("=")[0]]
            yield [*before, step]
