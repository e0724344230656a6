"""Who this process is, from the rank variables; and the process group that it joins."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from headway.errors import PlanError, Problem
from headway.plan.schema import Plan


@dataclass(frozen=True)
class RankContext:
    """The variables that torchrun, deepspeed and Headway's own launchers all set."""

    rank: int
    local_rank: int
    world: int
    resume: bool  # started by `headway resume`: without a complete checkpoint it must refuse
    launched: bool  # by Headway, which holds the run's lock and shows the screen

    @staticmethod
    def from_environment(local_rank: int | None = None) -> RankContext:
        """`local_rank`: what the deepspeed launcher passes as an argument, where the variable is absent."""
        return RankContext(
            rank=int(os.environ.get("RANK", "0")),
            local_rank=int(os.environ.get("LOCAL_RANK", local_rank or 0)),
            world=int(os.environ.get("WORLD_SIZE", "1")),
            resume=os.environ.get("HEADWAY_RESUME") == "1",
            launched=os.environ.get("HEADWAY_LAUNCHED") == "1",
        )


def check_world(context: RankContext, plan: Plan) -> None:
    """The plan's batch was solved for its number of processes. Raises PlanError naming both numbers."""
    planned = plan.launch.processes
    if context.world != planned:
        rule = f"the plan is for {planned} processes, {context.world} were started"
        fix = f"start {planned} (torchrun --nproc_per_node={planned} ...), or make the plan for {context.world}:"
        fix += f" headway train run.yaml --set launch.processes={context.world} --dry-run"
        raise PlanError(problems=[Problem("launch.processes", rule, planned, fix)])


def join_early(context: RankContext, device: str, timeout_seconds: float) -> bool:
    """Join the process group before there is a plan, for a script whose rank 0 makes it; False where it had joined."""
    if dist.is_initialized():
        return False
    if context.world == 1:
        return True
    if device == "cuda":
        torch.cuda.set_device(context.local_rank)
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_seconds))
    return True


def join(context: RankContext, plan: Plan) -> torch.device:
    """Set threads, device and TF32, and join the process group; the rank's device, made current."""
    timeout = timedelta(seconds=plan.launch.timeout_seconds)
    device = torch.device("cpu")
    if plan.launch.device == "cuda":
        device = torch.device("cuda", context.local_rank)
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(plan.launch.threads)
    torch.set_float32_matmul_precision("high" if plan.numerics.tf32 else "highest")
    if plan.strategy.kind == "deepspeed":
        import deepspeed

        for name, value in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1"}.items():
            os.environ.setdefault(name, str(value))
        os.environ.setdefault("MASTER_PORT", "0" if context.world == 1 else "29500")
        deepspeed.init_distributed(plan.launch.backend, timeout=timeout, auto_mpi_discovery=False, verbose=False)  # pyright: ignore
    elif context.world > 1 and not dist.is_initialized():
        dist.init_process_group(plan.launch.backend, timeout=timeout)
    return device


def seed_everything(seed: int, rank: int) -> None:
    """The run-time random state (dropout): another stream for each rank, the same in each run."""
    state = np.random.SeedSequence([seed, rank]).generate_state(3)
    random.seed(int(state[0]))
    np.random.seed(int(state[1]))
    torch.manual_seed(int(state[2]))


_LEFT: list[dist.ProcessGroup] = []  # never emptied: see `leave`


def leave() -> None:
    """Leave the process group; the engine may be let go before or after.

    The group's object is kept until the process ends. DistributedDataParallel's reducer holds it too, and where the
    reducer's is the last hold, torch frees the group with Python's lock held: gloo's destructor then waits for its
    own thread, which waits for that lock to drop a gradient bucket, and the rank hangs after its work is done.
    """
    if dist.is_available() and dist.is_initialized():
        group = dist.group.WORLD
        if group is not None:
            _LEFT.append(group)
        dist.destroy_process_group()
