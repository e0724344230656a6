"""May this plan run? The table of checks; they run side by side, each with a time limit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from pathlib import Path

from headway.check import deepspeed_json, environment, fitting, folder, gpus, machine, network, releases
from headway.check.host import Machine, MachineCheck
from headway.check.report import Report, Verdict, yellow
from headway.check.subject import Check, Subject
from headway.config.load import LoadedRun
from headway.errors import Problem, UserError
from headway.plan.live import LIVE_FINDINGS
from headway.plan.schema import Plan

LIMIT_SECONDS = 3.0

# Name (what --force takes) -> check. A table, so that the whole list is readable here.
CHECKS: dict[str, Check] = {
    "device": machine.device,
    "versions": machine.versions,
    "releases": releases.releases,
    "memory": machine.memory,
    "free-memory": gpus.free_memory,
    "host-memory": machine.host_memory,
    "disk": machine.disk,
    "data": fitting.data,
    "model": fitting.model,
    "tokenizer": fitting.tokenizer,
    "sequence": fitting.sequence,
    "precision": fitting.precision,
    "deepspeed-json": deepspeed_json.deepspeed_json,
    "batch": fitting.batch,
    "compiler": machine.compiler,
    "port": machine.port,
    "shared-memory": machine.shared_memory,
    "open-files": machine.open_files,
    "safety": folder.safety,
    "special-tokens": folder.special_tokens,
    "generation": folder.generation,
}

# Those that need no plan: `headway doctor` runs them alone, `plan` and `train` beside the others.
MACHINE_CHECKS: dict[str, MachineCheck] = {
    "python": environment.python,
    "pairs": environment.pairs,
    "cuda": environment.cuda,
    "nccl": environment.nccl,
    "toolkit": environment.toolkit,
    "build-tools": environment.build_tools,
    "jit-lock": environment.jit_lock,
    "jit-ops": environment.jit_ops,
    "locked-memory": environment.locked_memory,
    "inodes": environment.inodes,
    "clock": environment.clock,
    "host-name": network.host_name,
    "interface": network.interface,
    "rendezvous-port": network.rendezvous_port,
    "rank-variables": network.rank_variables,
    "gpu-health": gpus.gpu_health,
    "gpu-free": gpus.gpu_free,
    "gpu-models": gpus.gpu_models,
    "gpu-links": gpus.gpu_links,
}
# Of what the data room looks at itself, handed to `run_checks` by the composition root.
GIVEN = ("text", "records")
NAMES = (*CHECKS, *MACHINE_CHECKS, *GIVEN)


@dataclass
class _Running:
    """One check in its own thread. The thread is a daemon: a hung file system must not keep the process alive."""

    name: str
    check: Callable[[], Verdict]
    verdict: Verdict | None = None
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run, name=f"check-{self.name}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.verdict = self.check()
        except Exception as error:  # a check that breaks must not stop a run that could work
            self.verdict = yellow(self.name, f"could not be checked: {type(error).__name__}: {error}")


def run_checks(
    plan: Plan,
    run: LoadedRun | None,
    run_dir: Path,
    *,
    checks: dict[str, Check] | None = None,
    given: Mapping[str, Callable[[], Verdict]] | None = None,
    limit_seconds: float = LIMIT_SECONDS,
) -> Report:
    """Every check on this machine, in the order of the tables; together at most `limit_seconds`.

    checks: these alone, in place of both tables. given: more, by the names in GIVEN.
    """
    subject = Subject(plan, run, run_dir)
    work = {name: partial(check, name, subject) for name, check in (CHECKS if checks is None else checks).items()}
    if checks is None:
        # NVMe offload and strategies of the user's own may load compiled ops; Headway's others load none.
        loads_ops = ":" in plan.strategy.kind or "nvme" in plan.strategy.model_dump_json()
        host = Machine(folder=run_dir, loads_ops=loads_ops)
        work |= {name: partial(check, name, host) for name, check in MACHINE_CHECKS.items()}
    return side_by_side(work | dict(given or {}), limit_seconds)


def side_by_side(work: dict[str, Callable[[], Verdict]], limit_seconds: float) -> Report:
    """Runs all at once; one that has not answered in time is a yellow verdict, one that breaks as well."""
    running = [_Running(name, check) for name, check in work.items()]
    clock = threading.Event()
    timer = threading.Timer(limit_seconds, clock.set)
    timer.daemon = True
    timer.start()
    for each in running:
        while each.thread.is_alive() and not clock.is_set():
            each.thread.join(0.02)
    timer.cancel()
    late = f"gave no answer within {limit_seconds:g} s"
    verdicts = (
        each.verdict or yellow(each.name, late, "check the file systems of the run and the data") for each in running
    )
    return Report(tuple(verdicts))


def require_checks(names: Sequence[str]) -> None:
    """Raises UserError for each name that is no finding: a word that was mistyped would pass nothing, in silence."""
    known = (*NAMES, *LIVE_FINDINGS)
    problems = [
        Problem("--force", _unknown(name), name, f"one of: {', '.join(known)}") for name in names if name not in known
    ]
    if problems:
        raise UserError(problems=problems)


def _unknown(name: str) -> str:
    near = get_close_matches(name, [*NAMES, *LIVE_FINDINGS], n=1)
    return "is no check" + (f"; did you mean {near[0]}?" if near else "")
