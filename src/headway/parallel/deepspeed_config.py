"""Plan -> DeepSpeed's JSON, every value written out: its defaults changed between releases. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headway.errors import PlanError, Problem
from headway.plan.explain import flatten
from headway.plan.memory import LIVE_NUMBERS
from headway.plan.schema import Plan, StrategyPlan

NEVER = 2**31 - 1  # DeepSpeed prints every so many steps; Headway reports itself


def deepspeed_config(plan: Plan) -> dict[str, Any]:
    """The whole configuration that the engine is built from; nothing in it is 'auto'.

    What a DeepSpeed JSON gives to the engine beyond the plan's values (`strategy.engine`) is laid over the rest.

    Raises:
        PlanError: an "auto" is left, which DeepSpeed would drop in silence.
    """
    config: dict[str, Any] = {
        "train_batch_size": plan.batch.slots,
        "train_micro_batch_size_per_gpu": plan.batch.micro_batch,
        "gradient_accumulation_steps": plan.batch.accumulation,
        "gradient_clipping": plan.optimizer.clip,
        "zero_allow_untested_optimizer": True,  # torch's fused optimizers; the equality test is their admission
        "zero_force_ds_cpu_optimizer": False,  # torch's fused AdamW gives the same bits without a compiler
        "zero_optimization": zero_section(plan.strategy, on_gpu=plan.launch.device == "cuda"),
        "bf16": {"enabled": plan.numerics.precision == "bf16"},
        "fp16": {"enabled": plan.numerics.precision == "fp16"},
        "steps_per_print": NEVER,
        "wall_clock_breakdown": False,
        "dump_state": False,
    }
    if plan.numerics.precision == "bf16":
        # Without it a non-finite gradient is applied at stages 1 and 2 instead of discarded.
        config["bf16"]["check_grad_overflow"] = True
    if plan.numerics.precision == "fp16":
        config["fp16"] |= {"loss_scale": 0, "initial_scale_power": 16, "loss_scale_window": 1000, "hysteresis": 2}
        config["fp16"]["min_loss_scale"] = 1
    config = laid_over(config, plan.strategy.engine)
    if left := [path for path, value in flatten(config) if value == "auto"]:
        problems = [Problem(path, "is auto, which DeepSpeed would drop", "auto", "write a value") for path in left]
        raise PlanError(problems=problems)
    return config


def laid_over(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the values of `over` in its sections."""
    merged = dict(base)
    for key, value in over.items():
        inner = merged.get(key)
        merged[key] = laid_over(inner, value) if isinstance(inner, dict) and isinstance(value, Mapping) else value
    return merged


def zero_section(strategy: StrategyPlan, *, on_gpu: bool) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": strategy.stage}
    if strategy.stage == 0:
        return zero
    zero |= {
        "reduce_bucket_size": strategy.reduce_bucket_elements,
        "allgather_bucket_size": strategy.allgather_bucket_elements,
        "overlap_comm": strategy.overlap_comm,
        "contiguous_gradients": True,
        "reduce_scatter": True,
        "round_robin_gradients": False,
    }
    pinned = {"device": "cpu", "pin_memory": on_gpu}
    if strategy.offload_optimizer:
        zero["offload_optimizer"] = dict(pinned)
    if strategy.offload_parameters:
        zero["offload_param"] = dict(pinned)
    if strategy.stage == 3:
        zero |= {
            "stage3_prefetch_bucket_size": strategy.prefetch_bucket_elements,
            "stage3_param_persistence_threshold": strategy.persistence_threshold_elements,
            "stage3_max_live_parameters": LIVE_NUMBERS,
            "stage3_max_reuse_distance": LIVE_NUMBERS,
            "sub_group_size": 10**9,
            "zero_quantized_weights": strategy.quantized_weights,
            "zero_quantized_gradients": strategy.quantized_gradients,
            "zero_hpz_partition_size": strategy.secondary_partition,
        }
    return zero
