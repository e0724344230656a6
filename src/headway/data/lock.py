"""One builder at a time: others wait, and a builder that died holds nothing."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headway.data.seam import ProgressReporter

_POLL_SECONDS = 0.1


@contextmanager
def only_builder(path: Path, report: ProgressReporter) -> Iterator[None]:
    """Hold the lock file `path` for the body; waits for another holder and says who it is.

    The kernel drops the lock with its holder, so none is ever stale; the process id and host in the file are for
    people. On a file system without locks two builders may both work: each builds apart and the first to finish wins.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        told = False
        while not _try_lock(file.fileno()):
            if not told:
                report.note(f"waiting for {_holder(path)}, which builds the same")
                told = True
            time.sleep(_POLL_SECONDS)
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        file.flush()
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # no locks here (some network file systems)
    return True


def _holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_text(encoding="utf-8"))
        return f"process {holder['pid']} on {holder['host']}"
    except (OSError, ValueError, KeyError):
        return "another process"
