"""One started rank, whichever way it was started: its pid, whether it ended, and how to end it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

# Tells the worker that its launcher holds the run's lock. No part of the printed command: a user who runs that by hand
# holds no lock, and the worker then takes it.
LAUNCHED = {"HEADWAY_LAUNCHED": "1"}


@dataclass(frozen=True)
class Rank:
    """A rank's process. It leads a session of its own, so that its group holds all that it started."""

    number: int
    pid: int
    poll: Callable[[], int | None]  # exit code, negative for a signal; None while it runs

    def ask_to_end(self) -> None:
        """SIGTERM to the rank alone: it saves and tells its own children."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to the rank and to everything that it left behind in its group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        if self.poll() is None:  # a forked rank has no group of its own during its first instants
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def start_command(command: str, number: int) -> Rank:
    """Start one rendered command; the shell replaces itself by the rank, which therefore has the shell's pid."""
    environment = {**os.environ, **LAUNCHED}
    process = subprocess.Popen(["/bin/sh", "-c", f"exec {command}"], env=environment, start_new_session=True)
    return Rank(number, process.pid, process.poll)


class Lifeline:
    """Ends the ranks if this process is killed: a shell that reads a pipe from here and acts when the pipe closes.

    A process of its own outlives SIGKILL to the launcher, and needs no help from the worker.
    """

    _SCRIPT = (
        "trap '' INT TERM HUP; while read -r pid; do all=\"$all $pid\"; done; "
        'for pid in $all; do kill -9 "-$pid"; kill -9 "$pid"; done'
    )

    def __enter__(self) -> Lifeline:
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", self._SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self

    def hold(self, rank: Rank) -> None:
        """From now on this rank ends with the launcher."""
        if self._guard.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._guard.stdin.write(f"{rank.pid}\n".encode())
                self._guard.stdin.flush()

    def __exit__(self, *_: object) -> None:
        self._guard.kill()  # before the pipe closes: nothing is left to end
        self._guard.wait()
        if self._guard.stdin is not None:
            self._guard.stdin.close()
