"""What every Tracker must do. A new tracker joins by adding a row to CASES in fakes/trackers.py."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from fakes.trackers import CASES, Case, place_store
from headway.registry import kinds
from headway.run.journal import Journal
from headway.run.paths import RunDir
from headway.track.fanout import FanOut
from headway.track.jsonl import JsonLinesTracker
from headway.track.seam import Tracker

PLAN = {"schedule": {"steps": 9}, "name": "a"}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    found = CASES[request.param]
    if found.package:
        pytest.importorskip(found.package, reason=f"the extra {found.package!r} is not installed")
    return found


@pytest.fixture
def run_dir(case: Case, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    if case.package == "mlflow":
        place_store(folder, tmp_path_factory.getbasetemp() / "empty-store")
    return folder


def log(tracker: Tracker | FanOut, steps: range, loss: float) -> None:
    for step in steps:
        tracker.log(step, {"time": time.time(), "loss": loss, "lr": 1e-4})


def attempt(tracker: Tracker, run_dir: Path, steps: range, *, loss: float, resumed: bool) -> None:
    tracker.start(run_dir, "a", PLAN, resumed=resumed)
    log(tracker, steps, loss)
    tracker.finish("done")


def resumed(case: Case, run_dir: Path, at: int | None) -> tuple[FanOut, int]:
    """The tracker beside the local record, as a run has them, caught up to a checkpoint's step; lines sent for it."""
    trackers = FanOut([("jsonl", JsonLinesTracker()), ("other", case.make())], pytest.fail)
    trackers.start(run_dir, "a", PLAN, resumed=True)
    return trackers, trackers.catch_up(at)["other"]


def write_local(run_dir: Path, steps: range, loss: float) -> None:
    local = JsonLinesTracker()
    local.start(run_dir, "a", PLAN, resumed=False)
    log(local, steps, loss)
    local.finish("failed")


def test_every_registered_tracker_is_tested() -> None:
    assert set(kinds("track")) <= set(CASES)


def test_figures_come_back(case: Case, run_dir: Path) -> None:
    attempt(case.make(), run_dir, range(1, 4), loss=0.5, resumed=False)
    if case.read:
        assert case.read(run_dir, "loss") == [(1, 0.5), (2, 0.5), (3, 0.5)]


def test_a_resumed_run_counts_no_step_twice(case: Case, run_dir: Path) -> None:
    """Killed at step 5, resumed from a checkpoint at step 2: replaced, or sent once and left as sent."""
    if case.package:
        write_local(run_dir, range(1, 6), 0.5)
    attempt(case.make(), run_dir, range(1, 6), loss=0.5, resumed=False)
    tracker, _ = resumed(case, run_dir, 2)
    log(tracker, range(3, 5), 0.25)
    tracker.finish("done")
    if case.read and case.rewrites:
        assert case.read(run_dir, "loss") == [(1, 0.5), (2, 0.5), (3, 0.25), (4, 0.25)]
    elif case.read:
        assert case.read(run_dir, "loss") == [(step, 0.5) for step in range(1, 6)]


def test_what_was_missed_is_sent_once(case: Case, run_dir: Path) -> None:
    """It failed after step 2; the run went on to step 5 and judged itself at step 4."""
    if not case.package:
        pytest.skip("it keeps nothing, or is the local record itself")
    write_local(run_dir, range(1, 6), 0.5)
    with Journal(RunDir(run_dir).events) as events:
        events.event("evaluation", step=4, loss=0.75, seconds=1.0)
    attempt(case.make(), run_dir, range(1, 3), loss=0.5, resumed=False)
    for lines in (4, 0):  # a second time there is nothing to send
        tracker, sent = resumed(case, run_dir, None)
        tracker.finish("done")
        assert sent == lines
        assert case.read is not None
        assert case.read(run_dir, "loss") == [(step, 0.5) for step in range(1, 6)]
        assert case.read(run_dir, "eval.loss") == [(4, 0.75)]


def test_it_knows_what_it_holds(case: Case, run_dir: Path) -> None:
    attempt(case.make(), run_dir, range(1, 4), loss=0.5, resumed=False)
    tracker = case.make()
    tracker.start(run_dir, "a", PLAN, resumed=True)
    assert tracker.held("loss") == ({1, 2, 3} if case.read else set())
    assert tracker.held("eval.loss") == set()
    tracker.finish("stopped")


def test_values_that_are_not_known_do_no_harm(case: Case, run_dir: Path) -> None:
    tracker = case.make()
    tracker.start(run_dir, "a", {}, resumed=False)
    tracker.log(1, {"time": 1.0, "loss": float("nan"), "mfu": None, "applied": True})  # type: ignore[dict-item]
    tracker.finish("failed")


def test_finishing_twice_or_before_a_figure_does_no_harm(case: Case, run_dir: Path) -> None:
    tracker = case.make()
    tracker.start(run_dir, "a", {}, resumed=True)
    tracker.finish("stopped")
    tracker.finish("stopped")


def test_files_stay_inside_the_run_directory_or_where_it_says(case: Case, run_dir: Path) -> None:
    export = run_dir / "export"
    export.mkdir()
    (export / "headway.json").write_text(json.dumps({"name": "a", "step": 1}))
    (export / "README.md").write_text("# a")
    tracker = case.make()
    tracker.start(run_dir, "a", PLAN, resumed=False)
    tracker.artifact("export", export)
    tracker.finish("done")
    assert {path.name for path in run_dir.parent.iterdir()} == {"run", *case.beside}
