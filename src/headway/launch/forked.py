"""The first code of a forked rank: it makes the process what a freshly started one would be, then runs the worker."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from dataclasses import dataclass
from io import TextIOWrapper
from multiprocessing import connection, parent_process
from pathlib import Path


@dataclass(frozen=True)
class RankStart:
    """What a forked rank must know; the worker learns everything else from its run directory."""

    module: str
    run_dir: Path
    log: Path
    directory: Path
    threads: int
    environment: dict[str, str]


def run_rank(start: RankStart) -> None:
    """Become the rank and run the worker's `main(run_dir)`; its result is the exit code."""
    os.setsid()
    for name in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_DFL)  # the server ignores them
    _end_with_launcher()
    _redirect(start.log)
    os.chdir(start.directory)
    os.environ.update(start.environment)
    sys.argv = [start.module, str(start.run_dir)]
    if str(start.directory) not in sys.path:
        sys.path.insert(0, str(start.directory))  # as `python -m` does: the user's own modules are found there
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(start.threads)  # OMP_NUM_THREADS was read when the server imported torch
    sys.exit(importlib.import_module(start.module).main(str(start.run_dir)))


def _redirect(log: Path) -> None:
    """Input from nowhere, output and errors to the log, at the file descriptors: native code writes there too."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(output)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(write_through=True)


def _end_with_launcher() -> None:
    """A second line of defence behind the launcher's guard: covers the instants before the guard knows this pid."""
    parent = parent_process()
    if parent is None:
        return

    def wait() -> None:
        connection.wait([parent.sentinel])
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, name="end-with-launcher", daemon=True).start()
