"""Ctrl-C, SIGTERM and a closed terminal, heard by the launcher alone: ranks live in sessions of their own."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

_SAME_REQUEST_SECONDS = 0.3  # `timeout` signals its child and then the child's group: one request, heard twice


@dataclass
class StopRequests:
    """Whether the user, or a scheduler, asked the job to stop. Outside the main thread Python hears no signals."""

    asked: bool = False
    at_once: bool = False
    _first_at: float = field(default=0.0, repr=False)

    def hear(self, number: int, _frame: FrameType | None = None) -> None:
        """The first request asks to save. Only a later Ctrl-C ends at once: schedulers send SIGTERM more than once."""
        if not self.asked:
            self.asked, self._first_at = True, time.monotonic()
        elif number == signal.SIGINT and time.monotonic() - self._first_at > _SAME_REQUEST_SECONDS:
            self.at_once = True

    @contextlib.contextmanager
    def heard(self) -> Generator[None]:
        """Take the signals inside the block; the caller's handlers come back after it."""
        before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) != signal.SIG_IGN:  # under nohup a closed terminal changes nothing
                    before[number] = signal.signal(number, self.hear)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
