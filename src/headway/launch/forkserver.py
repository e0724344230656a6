"""Ranks forked from a server that has torch and DeepSpeed imported: the imports happen once, early, on the other core.

The server is the standard library's (multiprocessing's forkserver). What is added here: it starts before it is needed,
it hears neither the terminal's signals nor a scheduler's, and its children never run the caller's main script again.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import types
from collections.abc import Generator, Sequence
from multiprocessing import forkserver
from pathlib import Path

from headway.launch.forked import RankStart, run_rank
from headway.launch.ranks import Rank

SERVER_MODULE = "headway.launch.server"
PRELOAD = ("headway.train.preload",)  # by name: this room imports nothing from the worker's

# Read when torch, DeepSpeed and tokenizers are imported, so they must stand before; threads would not survive a fork.
_SERVER_ENVIRONMENT = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

# A server that has not answered by then was started by someone else, without the module above: it is simply used.
_FOREIGN_AFTER_SECONDS = 10.0

_folder: Path | None = None
_started_at = 0.0


def supported() -> bool:
    """Whether this system can fork ranks."""
    return "forkserver" in multiprocessing.get_all_start_methods() and sys.platform != "darwin"


def warm_up(device: str = "auto", preload: Sequence[str] = PRELOAD) -> bool:
    """Start the server and return at once, while it imports. True when ranks on the CPU can be forked from it.

    A second call changes nothing.

    device: 'cpu', 'cuda' or 'auto' (the CPU unless an NVIDIA driver is loaded). On a GPU ranks are never forked.
    """
    if not supported() or device == "cuda" or (device == "auto" and Path("/proc/driver/nvidia").exists()):
        return False
    _ensure_server(preload)
    return True


def server_ready() -> bool:
    """Whether the server has finished its imports; it answers requests only then."""
    if _folder is None:
        return False
    foreign = not (_folder / "server.log").exists() and time.monotonic() - _started_at > _FOREIGN_AFTER_SECONDS
    return (_folder / "ready").exists() or foreign


def server_output() -> str:
    """What the server printed while importing: warnings, or the traceback of an import that failed."""
    log = _folder / "server.log" if _folder else None
    return log.read_text(encoding="utf-8", errors="replace") if log and log.exists() else ""


def fork_rank(start: RankStart, number: int) -> Rank:
    """Fork one rank. Blocks until the server has finished its imports."""
    with _no_main_module():
        process = multiprocessing.get_context("forkserver").Process(
            target=run_rank, args=(start,), name=f"rank-{number}"
        )
        process.start()
    if process.pid is None:
        raise RuntimeError(f"rank {number} was started but has no pid")
    return Rank(number, process.pid, lambda: process.exitcode)


def _ensure_server(preload: Sequence[str]) -> None:
    global _folder, _started_at
    if _folder is None:
        _started_at = time.monotonic()
        _folder = Path(tempfile.mkdtemp(prefix="headway-fork-"))
        atexit.register(shutil.rmtree, _folder, ignore_errors=True)
    multiprocessing.get_context("forkserver").set_forkserver_preload([SERVER_MODULE])
    own = {"HEADWAY_FORK_SERVER": str(_folder), "HEADWAY_FORK_PRELOAD": " ".join(preload)}
    with _environment(_SERVER_ENVIRONMENT | own), _no_main_module():
        forkserver.ensure_running()  # pyright: ignore[reportUnknownMemberType]


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Generator[None]:
    """Set variables for a process that starts inside; put the old ones back."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _no_main_module() -> Generator[None]:
    """multiprocessing runs the parent's main script again in each child; a rank needs none of it.

    A user's script that calls Headway without an `if __name__ == "__main__"` guard would otherwise start itself anew.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
