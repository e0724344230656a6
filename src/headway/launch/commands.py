"""A local job as text: one shell command a rank. What is printed is what `exec` starts, character for character."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from headway.launch.seam import JobSpec
from headway.run.paths import RunDir

WORKER_MODULE = "headway.train.worker"
MASTER_ADDRESS = "127.0.0.1"


def rank_environment(job: JobSpec, rank: int, port: int) -> dict[str, str]:
    """The variables of one rank, over what it inherits. The job's own variables may replace all but the rank's."""
    launch = job.launch
    defaults = {
        "OMP_NUM_THREADS": str(launch.threads),
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if launch.device == "cpu":
        defaults["DS_ACCELERATOR"] = "cpu"  # otherwise DeepSpeed probes for every accelerator that it knows
    if launch.debug:
        defaults |= {"NCCL_DEBUG": "INFO", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    if job.resume:
        defaults["HEADWAY_RESUME"] = "1"  # the worker then refuses to start without a complete checkpoint
    rendezvous = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(launch.processes),
        "LOCAL_WORLD_SIZE": str(launch.processes),
        "MASTER_ADDR": MASTER_ADDRESS,
        "MASTER_PORT": str(port),
    }
    others = dict(sorted({**defaults, **job.environment}.items()))
    return rendezvous | {name: value for name, value in others.items() if name not in rendezvous}


def rank_command(job: JobSpec, rank: int, port: int, worker_module: str) -> str:
    """One rank as one shell command: environment, interpreter, worker, log."""
    run_dir = job.run_dir.resolve()
    variables = [f"{name}={value}" for name, value in rank_environment(job, rank, port).items()]
    words = ["env", *variables, sys.executable, "-m", worker_module, str(run_dir)]
    log = shlex.quote(str(RunDir(run_dir).logs(rank)))
    return f"{shlex.join(words)} </dev/null >>{log} 2>&1"


def render(job: JobSpec, port: int, worker_module: str, directory: Path | None = None) -> str:
    """The job as a shell script that also runs by hand: every rank in the background, then a wait.

    directory: where the ranks start; the present one when None.
    """
    count = job.launch.processes
    header = [
        "#!/bin/sh",
        f"# headway: {count} rank{'s' * (count != 1)} on this machine, one process each, each with its own log",
        f"cd {shlex.quote(str(directory or Path(os.getcwd())))} || exit",
        f"mkdir -p {shlex.quote(str(RunDir(job.run_dir.resolve()).log_folder))}",
    ]
    ranks = [f"{rank_command(job, rank, port, worker_module)} &" for rank in range(count)]
    return "\n".join([*header, *ranks, "wait", ""])
