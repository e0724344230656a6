"""Several trackers as one. Tracking never costs a run: what fails after the start is named once and left out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from headway.errors import HeadwayError, UserError
from headway.plan.schema import TrackPlan
from headway.registry import resolve
from headway.run.paths import RunDir
from headway.track.background import Background
from headway.track.record import EVALUATION_MARK, TRAINING_MARK, missing, standing
from headway.track.seam import Tracker

LOCAL_RECORD = "jsonl"
_LONGEST_WORDS = 300
_BEHIND_A_CONNECTION = ("mlflow",)  # wandb has a process of its own for that

Held = dict[str, set[int]]


class FanOut:
    """Trackers by name. `warn` gets one sentence for each tracker that fails.

    A failing tracker is left out from then on; the local record alone is tried again each time, since a disk that was
    full may have room later. training: else nothing goes on without it, so the sentence names no consequence.
    """

    def __init__(self, trackers: Sequence[tuple[str, Tracker]], warn: Callable[[str], None], *, training: bool = True):
        self._active = list(trackers)
        self._warn, self._training = warn, training
        self._failed: set[str] = set()
        self._held: dict[str, Held] = {}  # kind -> what a resumed run need not send again
        self._run = RunDir(Path())

    def start(self, run_dir: Path, name: str, plan: dict[str, Any], *, resumed: bool) -> None:
        """Start all of them. Raises HeadwayError at a first launch if one cannot; a resumed run goes on without it."""
        self._run = RunDir(run_dir)
        if resumed:
            self._each("start", lambda tracker: tracker.start(run_dir, name, plan, resumed=True))
            return
        for kind, tracker in self._active:
            try:
                tracker.start(run_dir, name, plan, resumed=False)
            except Exception as error:
                raise _cannot_start(kind, error) from error

    def catch_up(self, last_step: int | None = None) -> dict[str, int]:
        """Send what the local record holds up to `last_step` (None: all) and a tracker does not; lines sent, by kind.

        From then on, a step that a tracker holds is not sent to it again, but to one that rewrites.
        """
        lines = [line for line in standing(self._run) if last_step is None or line.step <= last_step]
        sent: dict[str, int] = {}

        def one(kind: str, tracker: Tracker) -> None:
            held = {mark: tracker.held(mark) for mark in (TRAINING_MARK, EVALUATION_MARK)}
            left = missing(lines, held, rewrites=tracker.rewrites)
            for line in left:
                tracker.log(line.step, line.values)
            sent[kind] = len(left)
            self._held[kind] = {} if tracker.rewrites else held

        for kind, tracker in list(self._active):
            if kind != LOCAL_RECORD:
                self._guarded(kind, tracker, "catch up", lambda tracker, kind=kind: one(kind, tracker))
        return sent

    def log(self, step: int, values: dict[str, float]) -> None:
        """One line of training's figures, to all."""
        timed = {"time": time.time(), **values}
        for kind, tracker in list(self._active):
            if step not in self._held.get(kind, {}).get(TRAINING_MARK, ()):
                self._guarded(kind, tracker, "log", lambda tracker: tracker.log(step, timed))

    def evaluation(self, step: int, values: dict[str, float]) -> None:
        """Held-out figures, to all but the local record, which has them among its events."""
        timed = {"time": time.time(), **values}
        for kind, tracker in list(self._active):
            held = self._held.get(kind, {}).get(EVALUATION_MARK, ())
            if kind != LOCAL_RECORD and step not in held:
                self._guarded(kind, tracker, "log", lambda tracker: tracker.log(step, timed))

    def artifact(self, name: str, path: Path) -> None:
        self._each("keep an artifact", lambda tracker: tracker.artifact(name, path))

    def finish(self, outcome: str) -> None:
        self._each("finish", lambda tracker: tracker.finish(outcome))

    @property
    def active(self) -> list[str]:
        """The kinds that have not failed."""
        return [kind for kind, _ in self._active]

    def _each(self, what: str, call: Callable[[Tracker], None]) -> None:
        for kind, tracker in list(self._active):
            self._guarded(kind, tracker, what, call)

    def _guarded(self, kind: str, tracker: Tracker, what: str, call: Callable[[Tracker], None]) -> None:
        try:
            call(tracker)
        except Exception as error:
            consequence = " and is tried again each time"
            if kind != LOCAL_RECORD:
                self._active.remove((kind, tracker))
                later = f"`headway show {self._run.name} --sync` sends what is missing"
                consequence = f" and is left out from here ({later})" if self._training else ""
            if kind not in self._failed:
                self._failed.add(kind)
                self._warn(f"the tracker {kind!r} could not {what}{consequence}: {_said(error)}")


def _cannot_start(kind: str, error: Exception) -> UserError:
    fix = f"remove {kind!r} from `track` in the run file"
    if isinstance(error, HeadwayError):
        return UserError(f"the tracker {kind!r} cannot start: {error.args[0]}", fix=f"or {fix}")
    return UserError(f"the tracker {kind!r} cannot start: {_said(error)}", fix=f"repair it, or {fix}")


def _said(error: Exception) -> str:
    """An error in one line; of a long one, as a page for an answer is, the beginning and the end."""
    if isinstance(error, HeadwayError):
        return str(error)
    words = " ".join(f"{type(error).__name__}: {error}".split())
    return words if len(words) <= _LONGEST_WORDS else f"{words[: _LONGEST_WORDS - 100]} ... {words[-95:]}"


def _told(tell: Callable[[str], None], kind: str, text: str) -> None:
    tell(f"{kind}: {text}")


def make_trackers(
    trackers: Sequence[TrackPlan], warn: Callable[[str], None], tell: Callable[[str], None] | None = None
) -> FanOut:
    """The local record first, then each of the plan's, through the registry.

    tell: of a training, gets what its end waits for; without it, every answer is waited for.

    Raises:
        ConfigError: an unknown kind.      MissingExtra: its package is not installed.
    """
    wanted = {LOCAL_RECORD: TrackPlan(kind=LOCAL_RECORD)} | {tracker.kind: tracker for tracker in trackers}
    made: list[tuple[str, Tracker]] = []
    for kind, asked in wanted.items():
        tracker: Tracker = resolve("track", kind)(**asked.options)
        if tell is not None and kind in _BEHIND_A_CONNECTION:
            tracker = Background(tracker, partial(_told, tell, kind))
        made.append((kind, tracker))
    return FanOut(made, warn, training=tell is not None)
