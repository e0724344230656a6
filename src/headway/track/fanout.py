"""Several trackers as one. Tracking never costs a run: what fails after the start is named once and left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headway.errors import HeadwayError
from headway.registry import resolve
from headway.track.seam import Tracker

LOCAL_RECORD = "jsonl"


class FanOut:
    """Trackers by name. `warn` gets one sentence for each tracker that fails.

    A failing tracker is left out from then on; the local record alone is tried again each time, since a disk that was
    full may have room later.
    """

    def __init__(self, trackers: Sequence[tuple[str, Tracker]], warn: Callable[[str], None]):
        self._active = list(trackers)
        self._warn = warn
        self._failed: set[str] = set()

    def start(self, run_dir: Path, name: str, plan: dict[str, Any], *, resumed: bool) -> None:
        """Start all of them. Raises HeadwayError at a first launch if one cannot; a resumed run goes on without it."""
        if resumed:
            self._each("start", lambda tracker: tracker.start(run_dir, name, plan, resumed=True))
            return
        for kind, tracker in self._active:
            try:
                tracker.start(run_dir, name, plan, resumed=False)
            except Exception as error:
                raise HeadwayError(
                    f"the tracker {kind!r} cannot start: {type(error).__name__}: {error}",
                    fix=f"repair it, or remove {kind!r} from `track` in the run file",
                ) from error

    def log(self, step: int, values: dict[str, float]) -> None:
        self._each("log", lambda tracker: tracker.log(step, values))

    def artifact(self, name: str, path: Path) -> None:
        self._each("keep an artifact", lambda tracker: tracker.artifact(name, path))

    def finish(self, outcome: str) -> None:
        self._each("finish", lambda tracker: tracker.finish(outcome))

    def _each(self, what: str, call: Callable[[Tracker], None]) -> None:
        for kind, tracker in list(self._active):
            try:
                call(tracker)
            except Exception as error:
                consequence = "is tried again each time"
                if kind != LOCAL_RECORD:
                    self._active.remove((kind, tracker))
                    consequence = "is left out from here"
                if kind not in self._failed:
                    self._failed.add(kind)
                    self._warn(
                        f"the tracker {kind!r} could not {what} and {consequence}: {type(error).__name__}: {error}"
                    )


def make_trackers(kinds: Sequence[str], warn: Callable[[str], None]) -> FanOut:
    """The local record first, then each kind of the run file's `track`, through the registry.

    Raises:
        ConfigError: an unknown kind.      MissingExtra: its package is not installed.
    """
    names = dict.fromkeys((LOCAL_RECORD, *kinds))
    return FanOut([(kind, resolve("track", kind)()) for kind in names], warn)
