"""May this plan run? The table of checks; they run side by side, each with a time limit."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from headway.check import fitting, machine, releases
from headway.check.report import Report, Verdict, yellow
from headway.check.subject import Check, Subject
from headway.config.load import LoadedRun
from headway.errors import Problem, UserError
from headway.plan.schema import Plan

LIMIT_SECONDS = 3.0

# Name (what --force takes) -> check. A table, so that the whole list is readable here.
CHECKS: dict[str, Check] = {
    "device": machine.device,
    "versions": machine.versions,
    "releases": releases.releases,
    "memory": machine.memory,
    "host-memory": machine.host_memory,
    "disk": machine.disk,
    "data": fitting.data,
    "model": fitting.model,
    "tokenizer": fitting.tokenizer,
    "sequence": fitting.sequence,
    "precision": fitting.precision,
    "batch": fitting.batch,
    "compiler": machine.compiler,
    "port": machine.port,
    "shared-memory": machine.shared_memory,
    "open-files": machine.open_files,
}


@dataclass
class _Running:
    """One check in its own thread. The thread is a daemon: a hung file system must not keep the process alive."""

    name: str
    check: Check
    subject: Subject
    verdict: Verdict | None = None
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run, name=f"check-{self.name}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.verdict = self.check(self.name, self.subject)
        except Exception as error:  # a check that breaks must not stop a run that could work
            self.verdict = yellow(self.name, f"could not be checked: {type(error).__name__}: {error}")


def run_checks(
    plan: Plan,
    run: LoadedRun | None,
    run_dir: Path,
    *,
    checks: dict[str, Check] | None = None,
    limit_seconds: float = LIMIT_SECONDS,
) -> Report:
    """Every check on this machine, in the order of the table; together at most `limit_seconds`."""
    subject = Subject(plan, run, run_dir)
    running = [_Running(name, check, subject) for name, check in (checks or CHECKS).items()]
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
    """Raises UserError for each name that is no check: a word that was mistyped would pass nothing, in silence."""
    problems = [
        Problem("--force", _unknown(name), name, f"one of: {', '.join(CHECKS)}") for name in names if name not in CHECKS
    ]
    if problems:
        raise UserError(problems=problems)


def _unknown(name: str) -> str:
    near = get_close_matches(name, CHECKS, n=1)
    return "is no check" + (f"; did you mean {near[0]}?" if near else "")
