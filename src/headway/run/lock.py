"""One live job per run directory, and the request to stop it.

The lock file names a process: host, boot, pid and start time, so that a pid that was given to another process after a
crash or a reboot is not taken for the job.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from headway.errors import Problem, UserError
from headway.run.paths import RunDir
from headway.run.whole import write_whole


@dataclass(frozen=True)
class Holder:
    """A process, named so that no other process ever has the same name."""

    host: str
    boot: str  # changes with each boot; '' where the system does not tell
    pid: int
    started: str  # start time of the process, in the system's own count since boot
    time: float  # unix seconds, when the lock was taken

    def same_process(self, other: Holder) -> bool:
        return (self.host, self.boot, self.pid, self.started) == (other.host, other.boot, other.pid, other.started)


def this_process() -> Holder:
    return Holder(platform.node(), _boot(), os.getpid(), _start_time(os.getpid()) or "", time.time())


def is_alive(holder: Holder) -> bool | None:
    """Whether the process still runs; None when it is on another host, which cannot be asked from here."""
    if holder.host != platform.node():
        return None
    return holder.boot == _boot() and _start_time(holder.pid) == holder.started


def read_holder(run: RunDir) -> Holder | None:
    """The process that has the run, dead or alive; None if it was let go, or its file was torn by a crash."""
    try:
        return _parse(run.lock.read_text())
    except OSError:
        return None


def live_holder(run: RunDir) -> Holder | None:
    """The process that has the run, unless it is known to be dead."""
    holder = read_holder(run)
    return holder if holder is not None and is_alive(holder) is not False else None


class JobLock:
    """Held by the process that runs the job: `with JobLock(run): ...`. A dead holder's lock is taken over.

    take_over: also from a holder on another host, for a scheduler that knows the job there to be over.

    Raises:
        RunInUse: on entering, when another live process has the run; names it and how to stop it.
    """

    def __init__(self, run: RunDir, *, take_over: bool = False):
        self._run = run
        self._take_over = take_over
        self._own: Holder | None = None

    def __enter__(self) -> JobLock:
        own = this_process()
        with _guarded(self._run.lock) as descriptor:
            holder = _parse(_read(descriptor))
            if holder is not None and not own.same_process(holder):
                alive = is_alive(holder)
                if alive or (alive is None and not self._take_over):
                    raise _busy(self._run, holder, certain=alive is True)
            _replace(descriptor, json.dumps(asdict(own)))
        self._own = own
        return self

    def __exit__(self, *_: object) -> None:
        if self._own is None:
            return
        with _guarded(self._run.lock) as descriptor:
            holder = _parse(_read(descriptor))
            # Emptied, not removed: a process that waits for the guard has this very file open.
            if holder is not None and holder.same_process(self._own):
                _replace(descriptor, "")
        self._own = None


def request_stop(run: RunDir, reason: str) -> None:
    """Ask the job to save and end; the workers look at each step."""
    write_whole(run.stop_request, json.dumps({"time": time.time(), "reason": reason}))


def stop_requested(run: RunDir) -> str | None:
    """The reason of a pending request to stop; None if there is none."""
    try:
        return str(json.loads(run.stop_request.read_text())["reason"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return "requested"


def clear_stop(run: RunDir) -> None:
    """Forget a request: at the start of a job, so that an old one does not stop it at once."""
    run.stop_request.unlink(missing_ok=True)


class RunInUse(UserError):
    """Another process has the run: its files are that process's to write."""


def _busy(run: RunDir, holder: Holder, *, certain: bool) -> RunInUse:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder.time))
    fix = f"`headway stop {run.name}`, or start another run"
    if not certain:
        fix = f"if that host or job is gone, remove {run.lock}; otherwise stop it there"
    rule = f"is in use by process {holder.pid} on {holder.host} since {since}"
    return RunInUse(problems=[Problem("run", rule, str(run.path), fix)])


@contextmanager
def _guarded(path: Path) -> Generator[int]:
    """The lock file, open, with nobody else between reading and writing it. Held for microseconds, never for a job."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> str:
    os.lseek(descriptor, 0, os.SEEK_SET)
    return os.read(descriptor, 65536).decode(errors="replace")


def _replace(descriptor: int, text: str) -> None:
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, text.encode())
    os.fsync(descriptor)


def _parse(text: str) -> Holder | None:
    try:
        data: dict[str, Any] = json.loads(text)
        return Holder(str(data["host"]), str(data["boot"]), int(data["pid"]), str(data["started"]), float(data["time"]))
    except (ValueError, KeyError, TypeError):
        return None


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _start_time(pid: int) -> str | None:
    """Clock ticks from boot to the start of the process; None if it does not run (a zombie has ended)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return _start_time_without_proc(pid)
    # The second field is the command in brackets and may hold spaces and brackets itself.
    state, *fields = text.rpartition(")")[2].split()
    return None if state in "ZX" else fields[18]


def _start_time_without_proc(pid: int) -> str | None:
    if Path("/proc/self/stat").exists():
        return None
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.1f}"
    except psutil.Error:
        return None
