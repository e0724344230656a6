"""Ranks on this machine: the Launcher behind `launch.kind: local`.

`headway train` calls `run_job` and stays in the foreground. `submit` starts the same in the background: a supervisor
process of its own, which outlives the caller.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import asdict, replace
from pathlib import Path

import psutil

from headway.errors import UserError
from headway.launch import commands, files
from headway.launch.attempt import LocalOptions
from headway.launch.forkserver import warm_up
from headway.launch.ports import choose_port
from headway.launch.seam import JobSpec, JobStatus
from headway.launch.supervise import run_job
from headway.run.paths import RunDir

__all__ = ["LocalLauncher", "LocalOptions", "job_in", "run_job", "warm_up"]


class LocalLauncher:
    """Implements the seam Launcher. A job's id is its run directory and its supervisor's pid: `/runs/a:1234`."""

    def __init__(self, options: LocalOptions | None = None):
        self.options = options or LocalOptions()

    def render(self, job: JobSpec) -> str:
        """The shell script that `submit` starts: one command a rank."""
        return commands.render(job, choose_port(job.launch.port, job.run_dir), self.options.worker_module)

    def submit(self, job: JobSpec) -> str:
        """Start the ranks in the background and return at once. Each rank is one of the rendered commands."""
        run_dir = job.run_dir.resolve()
        port = choose_port(job.launch.port, run_dir)
        launch = job.launch.model_copy(update={"port": port})
        options = replace(self.options, method="exec")
        request = {
            "run_dir": str(run_dir),
            "launch": launch.model_dump(mode="json"),
            "environment": job.environment,
            "resume": job.resume,
            "options": asdict(options),
        }
        logs = RunDir(run_dir).log_folder
        logs.mkdir(parents=True, exist_ok=True)
        with (logs / "launcher.log").open("ab") as log:
            supervisor = subprocess.Popen(
                [sys.executable, "-m", "headway.launch.detached"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if supervisor.stdin is not None:
            supervisor.stdin.write(json.dumps(request).encode())
            supervisor.stdin.close()
        # Reaped when it ends; the job outlives this process all the same.
        threading.Thread(target=supervisor.wait, name="reap supervisor", daemon=True).start()
        return f"{run_dir}:{supervisor.pid}"

    def status(self, job_id: str) -> JobStatus:
        """Where the job stands; 'failed' without a failure where its supervisor was killed."""
        run_dir, pid = _split(job_id)
        record = files.read_record(run_dir)
        if record is not None and record.supervisor.pid == pid:
            return record.status()
        return JobStatus("running" if _runs(pid) else "failed")  # it has only just started, or never could

    def logs(self, job_id: str) -> list[Path]:
        """Each rank's log, in the order of the ranks."""
        found = RunDir(_split(job_id)[0]).log_folder.glob("rank-*.log")
        return sorted(found, key=lambda path: int(path.stem.removeprefix("rank-")))

    def stop(self, job_id: str) -> None:
        """SIGTERM to the supervisor, which asks the ranks to save. Returns at once; nothing happens to an ended job."""
        if self.status(job_id).state == "running":
            with contextlib.suppress(ProcessLookupError):
                os.kill(_split(job_id)[1], signal.SIGTERM)


def job_in(run_dir: Path) -> str | None:
    """The id of the job that runs in this directory, started by `headway train` or by `submit`; None if none runs."""
    record = files.read_record(run_dir)
    return f"{run_dir.resolve()}:{record.supervisor.pid}" if record is not None and record.running() else None


def _split(job_id: str) -> tuple[Path, int]:
    path, _, pid = job_id.rpartition(":")
    if not path or not pid.isdecimal():
        raise UserError(f"not the id of a local job: {job_id!r}", fix="write RUN_DIR:PID, as submit returned it")
    return Path(path), int(pid)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
