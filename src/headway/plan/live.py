"""What the built engine must say of itself under a plan. The run reads it back before its first step."""

from __future__ import annotations

from typing import Any

from headway.plan.memory import moments_of
from headway.plan.schema import Plan

_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_OPTIMIZERS = {"adamw": "AdamW", "adam": "Adam", "sgd": "SGD", "rmsprop": "RMSprop"}

# Setting -> the name that --force takes.
FORCE_NAMES = {
    "stage": "live-stage",
    "clip": "live-clip",
    "accumulation": "live-accumulation",
    "micro_batch": "live-micro-batch",
    "world": "live-world-size",
    "weights": "live-dtype",
    "optimizer": "live-optimizer",
    "states_on": "live-states",
    "offload_optimizer": "live-offload",
    "offload_parameters": "live-offload",
}
LIVE_FINDINGS = tuple(dict.fromkeys(FORCE_NAMES.values()))
# Names that stand for several settings: a finding says which.
LIVE_SHARED = {name for name in LIVE_FINDINGS if list(FORCE_NAMES.values()).count(name) > 1}


def expected_settings(plan: Plan) -> dict[str, Any]:
    """Setting -> its value, as `headway.parallel.live.settings` names them."""
    strategy, batch = plan.strategy, plan.batch
    sharded = strategy.kind == "deepspeed"
    wanted: dict[str, Any] = {
        "weights": [_DTYPES[plan.numerics.precision] if sharded else "float32"],
        "optimizer": _OPTIMIZERS[plan.optimizer.kind],
        "world": batch.data_parallel_size,
    }
    if moments_of(plan.optimizer):
        wanted["states_on"] = ["cpu" if strategy.offload_optimizer else plan.launch.device]
    if sharded:
        wanted |= {
            "stage": strategy.stage,
            "clip": plan.optimizer.clip,
            "accumulation": batch.accumulation,
            "micro_batch": batch.micro_batch,
            "offload_optimizer": strategy.offload_optimizer,
            "offload_parameters": strategy.offload_parameters,
        }
    return wanted
