"""Imported first in the fork server, and active only there: what is imported here every forked rank finds imported."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import shutil
import signal
import traceback
from pathlib import Path


def _import_or_report(name: str) -> None:
    """An import that fails here fails again in each rank, where it reaches the rank's own log."""
    try:
        importlib.import_module(name)
    except Exception:
        traceback.print_exc()


def _serve(folder: Path, preload: list[str]) -> None:
    os.setsid()  # out of the terminal's reach; multiprocessing itself ignores SIGINT
    for ignored in (signal.SIGTERM, signal.SIGHUP):  # a scheduler signals every process; ranks must outlive it to save
        signal.signal(ignored, signal.SIG_IGN)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # the server outlives a launcher that is killed
    folder.mkdir(exist_ok=True)
    log = os.open(folder / "server.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    gc.disable()  # what is imported stays: looking through it for garbage takes a seventh of the time
    for name in preload:
        _import_or_report(name)
    gc.collect()
    gc.freeze()  # the collector then leaves the shared pages alone in every rank
    gc.enable()
    (folder / "ready").touch()


if _folder := os.environ.pop("HEADWAY_FORK_SERVER", ""):
    _serve(Path(_folder), os.environ.pop("HEADWAY_FORK_PRELOAD", "").split())
