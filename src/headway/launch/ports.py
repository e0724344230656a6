"""Choosing MASTER_PORT so that a busy port is never a failure."""

from __future__ import annotations

import re
import socket
import zlib
from pathlib import Path

# Below Linux's range for outgoing connections (from 32768), so that none can take the port between choice and use.
_FIRST, _COUNT = 20_000, 10_000
_TAKEN = re.compile(r"EADDRINUSE|address already in use", re.IGNORECASE)


def is_free(port: int) -> bool:
    """Whether a server could listen on the port at this moment, on every interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
            probe.listen(1)
        except OSError:
            return False
    return True


def any_free_port() -> int:
    """A port that the system says is free."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def choose_port(wanted: int | None, run_dir: Path) -> int:
    """The wanted port, or the run directory's own, where free; any free one otherwise.

    A directory always maps to the same port, so that two dry runs print the same text.
    """
    first = wanted or _FIRST + zlib.crc32(str(run_dir.resolve()).encode()) % _COUNT
    return first if is_free(first) else any_free_port()


def says_port_taken(error: str) -> bool:
    """Whether a rank's error means that another process took the rendezvous port first."""
    return _TAKEN.search(error) is not None
