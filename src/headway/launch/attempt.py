"""One start of all ranks of a local job, watched until every rank has ended."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from headway.errors import WorkerFailed
from headway.launch import files, forkserver
from headway.launch.commands import WORKER_MODULE, rank_command, rank_environment, render
from headway.launch.forked import RankStart
from headway.launch.ranks import LAUNCHED, Lifeline, Rank, start_command
from headway.launch.seam import JobSpec, JobStatus, RankFailure
from headway.launch.signals import StopRequests
from headway.launch.verdict import RankEnd, fails, judge
from headway.run.journal import Journal, follow
from headway.run.lock import this_process
from headway.run.paths import RunDir

Method = Literal["auto", "exec", "fork"]

_SERVER_WAIT_SECONDS = 180.0
_AFTER_KILL_SECONDS = 5.0
_CUT_OFF = (-signal.SIGTERM, -signal.SIGKILL, 128 + signal.SIGTERM, 128 + signal.SIGINT)  # ended without saving


@dataclass(frozen=True)
class LocalOptions:
    """How local ranks are started and ended."""

    worker_module: str = WORKER_MODULE
    method: Method = "auto"  # fork on a CPU, exec on GPUs
    save_seconds: float | None = None  # of a stopped job's ranks, before they are killed; None: the plan's grace
    end_seconds: float = 10.0  # the peers of a failed rank have so long to end
    poll_seconds: float = 0.05
    tick_seconds: float = 0.25
    port_attempts: int = 5


def notice(run_dir: Path, text: str) -> None:
    """A line for the user in the run's events; a full disk costs the line, not the run."""
    with contextlib.suppress(OSError), Journal(RunDir(run_dir).events) as events:
        events.event("notice", text=text)


class Attempt:
    """Ranks on one port. `run` once."""

    def __init__(self, job: JobSpec, options: LocalOptions, stop: StopRequests, port: int):
        self.job = replace(job, run_dir=job.run_dir.resolve())
        self.options = options
        self.stop = stop
        self.port = port
        fork = options.method == "fork" or (options.method == "auto" and job.launch.device == "cpu")
        self.method = "fork" if fork and forkserver.supported() else "exec"
        self.group_stood = False  # whether the ranks had met when the attempt ended
        self._ranks: list[Rank] = []
        self._ends: dict[int, RankEnd] = {}
        self._alive_at: dict[int, float] = {}  # rank -> unix seconds
        self._told_to_end: set[int] = set()
        self._ticked_at = 0.0

    def run(self, on_tick: Callable[[], None]) -> JobStatus:
        """Start the ranks and return when all have ended; whatever is raised here, no rank is left running."""
        run_dir = self.job.run_dir
        files.prepare_logs(run_dir, self.job.launch.processes)
        events = follow(RunDir(run_dir).events)
        events.poll()  # what earlier starts wrote
        try:
            with Lifeline() as lifeline:
                self._start(lifeline, on_tick)
                self._watch(on_tick)
        finally:
            self._kill_all()
        self.group_stood = any(event.get("event") == "process_group" for event in events.poll())
        status = self._status()
        self._record(status)
        return status

    def _start(self, lifeline: Lifeline, on_tick: Callable[[], None]) -> None:
        if self.method == "fork" and not self._server_stands(on_tick):
            if self.stop.asked:
                return
            self.method = "exec"
            said = "".join(f" ({line})" for line in forkserver.server_output().splitlines()[-1:])
            notice(self.job.run_dir, f"the fork server did not start{said}; starting each rank from the beginning")
        if self.method == "exec":
            script = render(self.job, self.port, self.options.worker_module)
            files.script_path(self.job.run_dir).write_text(script, encoding="utf-8")
        for number in range(self.job.launch.processes):
            rank = self._start_rank(number)
            self._ranks.append(rank)
            lifeline.hold(rank)
        self._record(JobStatus("running"))

    def _server_stands(self, on_tick: Callable[[], None]) -> bool:
        """Wait for the server's imports here, where a request to stop is heard, and not inside the fork."""
        forkserver.warm_up("cpu")
        deadline = time.monotonic() + _SERVER_WAIT_SECONDS
        while not forkserver.server_ready():
            if self.stop.asked or time.monotonic() > deadline:
                return False
            self._pause(on_tick)
        return True

    def _start_rank(self, number: int) -> Rank:
        if self.method == "exec":
            return start_command(rank_command(self.job, number, self.port, self.options.worker_module), number)
        start = RankStart(
            module=self.options.worker_module,
            run_dir=self.job.run_dir,
            log=RunDir(self.job.run_dir).logs(number),
            directory=Path.cwd(),
            threads=self.job.launch.threads,
            # The server stands since an earlier run perhaps: a key may have been set in between.
            environment={**os.environ, **rank_environment(self.job, number, self.port), **LAUNCHED},
        )
        return forkserver.fork_rank(start, number)

    def _watch(self, on_tick: Callable[[], None]) -> None:
        deadline: float | None = None
        asked_to_save = False
        while True:
            self._collect()
            if len(self._ends) == len(self._ranks):
                return
            failed = [end for end in self._ends.values() if fails(end)]
            if failed and not self._told_to_end:
                deadline = time.monotonic() + self._end_peers(failed)
            elif self.stop.asked and not asked_to_save and not self._told_to_end:
                asked_to_save = True
                notice(self.job.run_dir, "asked to stop: saving after this step; a second Ctrl-C ends without saving")
                grace = self.options.save_seconds
                deadline = time.monotonic() + (self.job.launch.grace_seconds if grace is None else grace)
                for rank in self._running():
                    rank.ask_to_end()
            if self.stop.at_once or (deadline is not None and time.monotonic() >= deadline):
                self._kill_all()
                return
            self._pause(on_tick)

    def _end_peers(self, failed: list[RankEnd]) -> float:
        """Ask the peers of a failed rank to end; returns how many seconds they have.

        None where a rank was killed: its peers can only wait for it.
        """
        self._told_to_end = {rank.number for rank in self._running()}
        if any(end.exit_code < 0 for end in failed):
            return 0.0
        for rank in self._running():
            rank.ask_to_end()
        return self.options.end_seconds

    def _running(self) -> list[Rank]:
        return [rank for rank in self._ranks if rank.number not in self._ends]

    def _collect(self) -> None:
        now = time.time()
        for rank in self._running():
            code = rank.poll()
            if code is None:
                self._alive_at[rank.number] = now
            else:
                alive_at = self._alive_at.get(rank.number, now)
                self._ends[rank.number] = RankEnd(rank.number, code, alive_at, rank.number in self._told_to_end)

    def _kill_all(self) -> None:
        """SIGKILL to every group: to ranks that still run, and to what ended ranks left behind."""
        self._collect()
        self._told_to_end |= {rank.number for rank in self._running()}
        for rank in self._ranks:
            rank.kill()
        deadline = time.monotonic() + _AFTER_KILL_SECONDS
        while self._running() and time.monotonic() < deadline:
            self._collect()
            time.sleep(0.005)
        for rank in self._running():  # held in the kernel, on a dead network disk for instance
            self._ends[rank.number] = RankEnd(rank.number, -signal.SIGKILL, time.time(), ended_by_launcher=True)

    def _pause(self, on_tick: Callable[[], None]) -> None:
        now = time.monotonic()
        if now - self._ticked_at >= self.options.tick_seconds:
            self._ticked_at = now
            on_tick()
        time.sleep(self.options.poll_seconds)

    def _status(self) -> JobStatus:
        ends = [self._ends[number] for number in sorted(self._ends)]
        cut_off = [end for end in ends if end.exit_code in _CUT_OFF]
        if not self.stop.asked or (ends and not cut_off):
            return judge(ends, self.job.run_dir)
        reason = "ended at once" if self.stop.at_once else "stopped" if ends else "stopped before the ranks started"
        error = f"{reason}, without saving: steps after the last checkpoint are lost"
        rank, code = (cut_off[0].rank, cut_off[0].exit_code) if cut_off else (0, -signal.SIGTERM)
        failure = RankFailure(rank, code, error, RunDir(self.job.run_dir).logs(rank))
        return JobStatus("stopped", WorkerFailed.exit_code, failure)

    def _record(self, status: JobStatus) -> None:
        record = files.LaunchRecord(
            supervisor=this_process(),
            method=self.method,
            port=self.port,
            processes={str(rank.number): rank.pid for rank in self._ranks},
            state=status.state,
            exit_code=status.exit_code,
            failure=status.failure,
        )
        with contextlib.suppress(OSError):  # a full disk must not hide how the ranks ended
            files.write_record(self.job.run_dir, record)
