"""Time of one step on a machine that was calibrated on its own engine: the sum of what it has rates for."""

from __future__ import annotations

from headway.facts.clusterfile import Rates
from headway.plan.memory import MAPPED_ABOVE_BYTES
from headway.plan.schema import Plan
from headway.plan.setting import TimeItem
from headway.plan.work import Work, forward_work, work_of


def measured_times(plan: Plan, rates: Rates) -> tuple[TimeItem, ...]:
    """One step, part by part, at the rates of `headway calibrate`. Nothing is taken to run behind anything else."""
    work = work_of(plan)
    parts = [
        ("matrix products", _per(work.flops, rates.layer_flops)),
        ("memory traffic", _per(work.stream_bytes, rates.stream_bytes_per_second)),
        ("layers' overhead", work.layer_passes * rates.layer_seconds),
        ("fixed", rates.step_seconds),
        ("optimizer", _per(work.updated_parameters, rates.update_parameters_per_second)),
        ("DeepSpeed's own work", _own_seconds(plan, rates)),
        ("communication", _exchange(work, rates, plan.launch.processes)),
    ]
    return tuple(TimeItem(name, seconds) for name, seconds in parts if seconds > 0)


def measured_forward(plan: Plan, rates: Rates) -> float:
    """Seconds of one micro batch's forward pass alone."""
    work = forward_work(plan)
    seconds = _per(work.flops, rates.layer_flops) + _per(work.stream_bytes, rates.stream_bytes_per_second)
    return seconds + work.layer_passes * rates.layer_seconds + _exchange(work, rates, plan.launch.processes)


def sharded_terms(plan: Plan) -> list[float]:
    """Layers that DeepSpeed hooks into, parameters in flat buffers that are mapped anew, parameters, the step once.

    At stages 2 and 3 all but the last come with each micro batch. All zero where nothing is sharded.
    """
    if plan.strategy.kind != "deepspeed" or plan.strategy.stage == 0:
        return [0.0, 0.0, 0.0, 0.0]
    times = plan.batch.accumulation if plan.strategy.stage >= 2 else 1
    parameters = float(plan.shape.trainable_parameters * times)
    mapped = 4 * plan.shape.trainable_parameters > MAPPED_ABOVE_BYTES
    return [float(plan.shape.layers * times), parameters if mapped else 0.0, parameters, 1.0]


def _own_seconds(plan: Plan, rates: Rates) -> float:
    third = plan.strategy.stage == 3
    units = (
        rates.stage_3_layer_seconds if third else rates.stage_2_layer_seconds,
        rates.stage_3_mapped_parameter_seconds if third else rates.stage_2_mapped_parameter_seconds,
        rates.stage_3_parameter_seconds if third else rates.stage_2_parameter_seconds,
        rates.stage_3_step_seconds if third else rates.stage_2_step_seconds,
    )
    return sum(amount * unit for amount, unit in zip(sharded_terms(plan), units, strict=True))


def _per(amount: float, rate: float | None) -> float:
    return amount / rate if rate else 0.0


def _exchange(work: Work, rates: Rates, ranks: int) -> float:
    if ranks == 1 or not rates.link_bytes_per_second:
        return 0.0
    moved = (2 * work.reduced_bytes + work.gathered_bytes) * (ranks - 1) / ranks
    return moved / rates.link_bytes_per_second + work.messages * rates.link_seconds
