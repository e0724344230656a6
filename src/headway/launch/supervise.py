"""Running a local job to its end, whatever port is taken meanwhile."""

from __future__ import annotations

from collections.abc import Callable

from headway.launch.attempt import Attempt, LocalOptions, notice
from headway.launch.ports import any_free_port, choose_port, says_port_taken
from headway.launch.seam import JobSpec, JobStatus
from headway.launch.signals import StopRequests


def run_job(job: JobSpec, on_tick: Callable[[], None], options: LocalOptions | None = None) -> JobStatus:
    """Start the ranks, call `on_tick` about four times a second, return when all ranks have ended.

    state 'done': every rank returned 0. 'stopped' with exit code 75: saved, `headway resume` goes on; with another
    code and a `failure`: stopped before it could save. 'failed': `failure` is the first rank that failed, with its own
    error. `exit_code` is what `headway train` returns. The caller holds the run's lock.
    In the main thread Ctrl-C, SIGTERM and SIGHUP are heard.
    """
    options = options or LocalOptions()
    port = choose_port(job.launch.port, job.run_dir)
    if job.launch.port not in (None, port):
        notice(job.run_dir, f"port {job.launch.port} is used by another process; the ranks meet on port {port}")
    stop = StopRequests()
    with stop.heard():
        for _ in range(options.port_attempts - 1):
            attempt = Attempt(job, options, stop, port)
            status = attempt.run(on_tick)
            if attempt.group_stood or stop.asked or not _lost_the_port(status):
                return status
            port, lost = any_free_port(), port
            notice(job.run_dir, f"port {lost} was taken before the ranks met; starting them again on port {port}")
        return Attempt(job, options, stop, port).run(on_tick)


def _lost_the_port(status: JobStatus) -> bool:
    return status.failure is not None and says_port_taken(status.failure.error)
