"""A user's own script on every rank of this machine: torch's launcher, with as many processes as a plan takes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from headway.errors import Problem, UserError
from headway.facts.cluster import probe_cluster

_CPU_PROCESSES = 2  # as headway.plan.launching


def script_command(script: Path, arguments: Sequence[str], processes: int | None) -> list[str]:
    """The words of the command. Raises UserError where the script is absent or no process is asked for."""
    problems: list[Problem] = []
    if not script.is_file():
        problems.append(Problem("SCRIPT", "there is no such file", str(script)))
    if script.suffix in (".yaml", ".yml", ".json", ".toml"):
        problems.append(Problem("SCRIPT", "is a run file, not a script", str(script), f"headway train {script}"))
    if processes is not None and processes < 1:
        problems.append(Problem("--processes", "must be at least 1", processes))
    if problems:
        raise UserError(problems=problems)
    ranks = processes or _as_many_as_fit()
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    return [*launcher, str(script), *arguments]


def _as_many_as_fit() -> int:
    cluster = probe_cluster()
    return cluster.devices_per_host if cluster.device == "cuda" else min(_CPU_PROCESSES, cluster.devices_per_host)


def become(command: Sequence[str]) -> NoReturn:
    """Replace this process by the command, so that signals reach the launcher itself."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.execv(command[0], list(command))
