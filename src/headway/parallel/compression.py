"""Smaller gradients on the wire: PyTorch's communication hooks of DistributedDataParallel.

DeepSpeed's 1-bit optimizers are gone; these are what is left that runs on every backend. fp16 and bf16 round each
gradient and halve the bytes. PowerSGD (Vogels et al., 2019) sends two thin matrices in place of each one, and adds
what was lost to the next gradient (error feedback).
"""

from __future__ import annotations

import logging

from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from headway.plan.schema import CompressionPlan

PowerState = powerSGD_hook.PowerSGDState


def compress(wrapped: DistributedDataParallel, plan: CompressionPlan, seed: int) -> PowerState | None:
    """Register the plan's hook; returns PowerSGD's state, which holds what was lost so far."""
    if plan.kind == "powersgd":
        logging.getLogger(powerSGD_hook.__name__).setLevel(logging.WARNING)  # it tells its settings on every rank
        state = PowerState(
            process_group=None,
            matrix_approximation_rank=plan.rank,
            start_powerSGD_iter=plan.start_step,
            use_error_feedback=plan.error_feedback,
            warm_start=True,
            random_seed=seed,
        )
        wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return state
    hook = default_hooks.bf16_compress_hook if plan.kind == "bf16" else default_hooks.fp16_compress_hook
    # By way of a lambda: DDP refuses the bf16 hook by its name where there is no NCCL, and gloo reduces bf16 as well.
    wrapped.register_comm_hook(None, lambda state, bucket: hook(state, bucket))
    return None


def forget(state: PowerState) -> None:
    """Drop what was lost and the warm start: a gradient that was not finite would stay in them for ever."""
    state.error_dict.clear()
    state.p_memory_dict.clear()
    state.q_memory_dict.clear()


RESUMED = (
    "strategy.gradient_compression: powersgd keeps what it lost in no checkpoint: after this resume {steps} steps are "
    "sent whole and its error feedback begins anew, so losses differ from those of a run that never stopped"
)
