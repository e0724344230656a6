"""What every Tracker must do. A new tracker joins by adding a row to TRACKERS."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.registry import kinds, resolve
from headway.run.journal import read
from headway.run.paths import RunDir
from headway.track.fanout import make_trackers
from headway.track.null import NullTracker
from headway.track.seam import Tracker

Figures = list[tuple[int, float]]  # (step, loss) that stand


def read_jsonl(run_dir: Path) -> Figures:
    return [(line["step"], line["loss"]) for line in read(RunDir(run_dir).metrics, latest_per_step=True)]


def read_tensorboard(run_dir: Path) -> Figures:
    """As TensorBoard itself shows them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(RunDir(run_dir).tensorboard))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars("loss")]


def make(kind: str) -> Callable[[], Tracker]:
    return lambda: resolve("track", kind)()


# How it is made, and how the figures are read back (None: it keeps none).
TRACKERS: dict[str, tuple[Callable[[], Tracker], Callable[[Path], Figures] | None]] = {
    "jsonl": (make("jsonl"), read_jsonl),
    "tensorboard": (make("tensorboard"), read_tensorboard),
    "null": (NullTracker, None),
    "fan-out": (lambda: make_trackers(("tensorboard",), pytest.fail), read_tensorboard),
}


@pytest.fixture(params=TRACKERS)
def case(request: pytest.FixtureRequest) -> tuple[Callable[[], Tracker], Callable[[Path], Figures] | None]:
    if "tensorboard" in request.param or request.param == "fan-out":
        pytest.importorskip("tensorboard", reason="the extra 'tensorboard' is not installed")
    return TRACKERS[request.param]


def attempt(tracker: Tracker, run_dir: Path, steps: range, *, loss: float, resumed: bool) -> None:
    tracker.start(run_dir, "a", {"schedule": {"steps": 9}}, resumed=resumed)
    for step in steps:
        tracker.log(step, {"loss": loss, "lr": 1e-4})
    tracker.artifact("export", run_dir / "export")
    tracker.finish("done")


def test_every_registered_tracker_is_tested() -> None:
    assert set(kinds("track")) <= set(TRACKERS)


def test_figures_come_back(case: Any, tmp_path: Path) -> None:
    make_tracker, read_back = case
    attempt(make_tracker(), tmp_path, range(1, 4), loss=0.5, resumed=False)
    if read_back:
        assert read_back(tmp_path) == [(1, 0.5), (2, 0.5), (3, 0.5)]


def test_a_resumed_run_replaces_what_came_after_its_checkpoint(case: Any, tmp_path: Path) -> None:
    make_tracker, read_back = case
    attempt(make_tracker(), tmp_path, range(1, 6), loss=0.5, resumed=False)
    attempt(make_tracker(), tmp_path, range(3, 5), loss=0.25, resumed=True)
    if read_back:
        assert read_back(tmp_path) == [(1, 0.5), (2, 0.5), (3, 0.25), (4, 0.25)]


def test_values_that_are_not_known_do_no_harm(case: Any, tmp_path: Path) -> None:
    make_tracker, _ = case
    tracker = make_tracker()
    tracker.start(tmp_path, "a", {}, resumed=False)
    tracker.log(1, {"loss": float("nan"), "mfu": None, "applied": True})
    tracker.finish("failed")


def test_finishing_twice_or_before_a_figure_does_no_harm(case: Any, tmp_path: Path) -> None:
    make_tracker, _ = case
    tracker = make_tracker()
    tracker.start(tmp_path, "a", {}, resumed=True)
    tracker.finish("stopped")
    tracker.finish("stopped")


def test_files_stay_inside_the_run_directory(case: Any, tmp_path: Path) -> None:
    make_tracker, _ = case
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    attempt(make_tracker(), run_dir, range(1, 2), loss=0.5, resumed=False)
    assert list(tmp_path.iterdir()) == [run_dir]
