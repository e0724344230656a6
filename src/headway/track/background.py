"""A tracker behind a slow connection, fed from a thread: training never waits for a server."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headway.track.seam import Tracker

LAST_SECONDS = 60.0  # how long the end of a run waits for what is still to be sent
_QUIET_SECONDS = 3.0  # of them, without a word


class Background:
    """Passes figures and artifacts on in their order. What fails there is raised at the next call here.

    tell: gets a sentence where the end has to wait.
    """

    def __init__(self, tracker: Tracker, tell: Callable[[str], None], *, last_seconds: float = LAST_SECONDS):
        self.rewrites = tracker.rewrites
        self._tracker, self._tell, self._last_seconds = tracker, tell, last_seconds
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._failure: Exception | None = None
        self._thread: threading.Thread | None = None

    def start(self, run_dir: Path, name: str, plan: dict[str, Any], *, resumed: bool) -> None:
        self._tracker.start(run_dir, name, plan, resumed=resumed)
        self._thread = threading.Thread(target=self._work, name="headway-tracker", daemon=True)
        self._thread.start()

    def held(self, name: str) -> set[int]:
        return self._tracker.held(name)

    def log(self, step: int, values: dict[str, float]) -> None:
        self._add(lambda: self._tracker.log(step, values))

    def artifact(self, name: str, path: Path) -> None:
        self._add(lambda: self._tracker.artifact(name, path))

    def finish(self, outcome: str) -> None:
        """Raises the thread's failure, or TimeoutError where not all could be sent in time."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._calls.put(lambda: self._tracker.finish(outcome))
        self._calls.put(None)
        quiet = min(_QUIET_SECONDS, self._last_seconds)
        thread.join(quiet)
        if thread.is_alive():
            self._tell(f"waiting at most {self._last_seconds:g} s while {self._calls.qsize()} more calls are sent")
            thread.join(self._last_seconds - quiet)
        if thread.is_alive():
            left = self._calls.qsize()
            raise TimeoutError(f"{left} calls were still to be sent {self._last_seconds:g} s after the end")
        self._raise()

    def _add(self, call: Callable[[], None]) -> None:
        self._raise()
        self._calls.put(call)

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except Exception as error:  # told by the next call of the process that trains
                self._failure = error
                return
