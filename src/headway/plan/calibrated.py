"""Time of one step on a machine that was calibrated on its own engine: the sum of what it has rates for."""

from __future__ import annotations

from headway.facts.clusterfile import Rates
from headway.plan.schema import Plan
from headway.plan.setting import TimeItem
from headway.plan.work import Work, work_of


def measured_times(plan: Plan, rates: Rates) -> tuple[TimeItem, ...]:
    """One step, part by part, at the rates of `headway calibrate`. Nothing is taken to run behind anything else."""
    work = work_of(plan)
    parts = [
        ("matrix products", work.flops / rates.layer_flops if rates.layer_flops else 0.0),
        ("memory traffic", work.stream_bytes / rates.stream_bytes_per_second if rates.stream_bytes_per_second else 0.0),
        ("layers' overhead", work.layer_passes * rates.layer_seconds),
        ("optimizer", _per(work.updated_parameters, rates.update_parameters_per_second)),
        ("DeepSpeed's own work", sharded_layers(plan) * _own_seconds(plan, rates)),
        ("communication", _exchange(work, rates, plan.launch.processes)),
    ]
    return tuple(TimeItem(name, seconds) for name, seconds in parts if seconds > 0)


def sharded_layers(plan: Plan) -> int:
    """Layers that DeepSpeed hooks into and hands on in a step: at stages 2 and 3 in each micro batch."""
    if plan.strategy.kind != "deepspeed" or plan.strategy.stage == 0:
        return 0
    return plan.shape.layers * (plan.batch.accumulation if plan.strategy.stage >= 2 else 1)


def _own_seconds(plan: Plan, rates: Rates) -> float:
    return rates.stage_3_layer_seconds if plan.strategy.stage == 3 else rates.stage_2_layer_seconds


def _per(amount: float, rate: float | None) -> float:
    return amount / rate if rate else 0.0


def _exchange(work: Work, rates: Rates, ranks: int) -> float:
    if ranks == 1 or not rates.link_bytes_per_second:
        return 0.0
    moved = (2 * work.reduced_bytes + work.gathered_bytes) * (ranks - 1) / ranks
    return moved / rates.link_bytes_per_second + work.messages * rates.link_seconds
