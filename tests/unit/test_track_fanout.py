"""A tracker that cannot start stops the first launch; one that fails later is named once, and the run goes on."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from headway.errors import ConfigError, HeadwayError, UserError
from headway.plan.schema import TrackPlan
from headway.run.journal import read
from headway.run.paths import RunDir
from headway.track.background import Background
from headway.track.fanout import FanOut, make_trackers
from headway.track.null import NullTracker


class Recorder:
    """Remembers its calls; raises in those that `fails_in` names."""

    rewrites = False

    def __init__(self, *fails_in: str):
        self.calls: list[str] = []
        self.fails_in = fails_in

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fails_in:
            raise ConnectionError("the server is away")

    def start(self, run_dir: Path, name: str, plan: dict[str, Any], *, resumed: bool) -> None:
        self._call("start")

    def held(self, name: str) -> set[int]:
        return set()

    def log(self, step: int, values: dict[str, float]) -> None:
        self._call("log")

    def artifact(self, name: str, path: Path) -> None:
        self._call("artifact")

    def finish(self, outcome: str) -> None:
        self._call("finish")


def run_through(tracker: FanOut, run_dir: Path, *, resumed: bool) -> None:
    tracker.start(run_dir, "a", {}, resumed=resumed)
    tracker.log(1, {"loss": 1.0})
    tracker.log(2, {"loss": 1.0})
    tracker.artifact("export", run_dir)
    tracker.finish("done")


ALL = ["start", "log", "log", "artifact", "finish"]


def test_every_tracker_gets_every_call(tmp_path: Path) -> None:
    warnings: list[str] = []
    trackers = [Recorder(), Recorder()]
    run_through(FanOut([("a", trackers[0]), ("b", trackers[1])], warnings.append), tmp_path, resumed=False)
    assert [tracker.calls for tracker in trackers] == [ALL, ALL]
    assert warnings == []


def test_the_first_launch_is_strict(tmp_path: Path) -> None:
    fan_out = FanOut([("a", Recorder()), ("b", Recorder("start"))], pytest.fail)
    with pytest.raises(UserError, match=r"'b' cannot start: ConnectionError: the server is away\n.*remove 'b'"):
        fan_out.start(tmp_path, "a", {}, resumed=False)


@pytest.mark.parametrize(
    ("fails_in", "calls"),
    [("start", ["start"]), ("log", ["start", "log"]), ("artifact", ALL[:4]), ("finish", ALL)],
)
def test_a_later_failure_warns_once_and_the_rest_goes_on(tmp_path: Path, fails_in: str, calls: list[str]) -> None:
    warnings: list[str] = []
    bad, good = Recorder(fails_in), Recorder()
    run_through(FanOut([("bad", bad), ("good", good)], warnings.append), tmp_path, resumed=True)
    assert bad.calls == calls
    assert good.calls == ALL
    assert len(warnings) == 1
    assert "'bad'" in warnings[0]
    assert "the server is away" in warnings[0]


def test_outside_of_a_training_nothing_is_said_to_go_on(tmp_path: Path) -> None:
    """And a page for an answer is cut."""

    class Page(Recorder):
        def start(self, run_dir: Path, name: str, plan: dict[str, Any], *, resumed: bool) -> None:
            raise ConnectionError("<html>\n" + "nothing here\n" * 200 + "</html>")

    warnings: list[str] = []
    FanOut([("a", Page())], warnings.append, training=False).start(tmp_path, "a", {}, resumed=True)
    (words,) = warnings
    assert words.startswith("the tracker 'a' could not start: ConnectionError: <html> nothing here")
    assert words.endswith("nothing here </html>")
    assert len(words) < 400


def test_the_local_record_is_tried_again_after_a_failure(tmp_path: Path) -> None:
    warnings: list[str] = []
    local = Recorder("log")
    run_through(FanOut([("jsonl", local)], warnings.append), tmp_path, resumed=False)
    assert local.calls == ALL
    assert len(warnings) == 1


def test_the_local_record_comes_first_and_once(tmp_path: Path) -> None:
    for plans in ((), (TrackPlan(kind="jsonl"),)):
        run_dir = tmp_path / str(len(plans))
        run_dir.mkdir()
        run_through(make_trackers(plans, pytest.fail), run_dir, resumed=False)
        assert [line["step"] for line in read(RunDir(run_dir).metrics)] == [1, 2]


def test_an_unknown_tracker_is_named() -> None:
    with pytest.raises(ConfigError, match=r"tensorbord.*\n?.*tensorboard"):
        make_trackers((TrackPlan(kind="tensorbord"),), pytest.fail)


def test_a_user_s_own_tracker_is_taken_by_path(tmp_path: Path) -> None:
    fan_out = make_trackers((TrackPlan(kind=f"{NullTracker.__module__}:NullTracker"),), pytest.fail)
    run_through(fan_out, tmp_path, resumed=False)


def test_the_fix_of_a_tracker_s_own_error_is_kept(tmp_path: Path) -> None:
    class Refused(Recorder):
        def start(self, run_dir: Path, name: str, plan: dict[str, Any], *, resumed: bool) -> None:
            raise UserError("no key", fix="set the key")

    with pytest.raises(HeadwayError, match=r"no key\n    fix: set the key\n    fix: or remove 'b' from"):
        FanOut([("b", Refused())], pytest.fail).start(tmp_path, "a", {}, resumed=False)


def test_training_does_not_wait_for_a_slow_tracker(tmp_path: Path) -> None:
    """Every call returns while the first figure is still being sent; the end waits for all of them."""
    gate = threading.Event()

    class Slow(Recorder):
        def log(self, step: int, values: dict[str, float]) -> None:
            gate.wait(60)
            super().log(step, values)

    slow = Slow()
    tracker = Background(slow, pytest.fail)
    tracker.start(tmp_path, "a", {}, resumed=False)
    tracker.log(1, {})
    tracker.log(2, {})
    tracker.artifact("export", tmp_path)
    assert slow.calls == ["start"]
    gate.set()
    tracker.finish("done")
    assert slow.calls == ALL


def test_a_failure_behind_the_connection_is_told_by_the_next_call(tmp_path: Path) -> None:
    warnings: list[str] = []
    bad = Recorder("log")
    fan_out = FanOut([("bad", Background(bad, pytest.fail))], warnings.append)
    fan_out.start(tmp_path, "a", {}, resumed=False)
    fan_out.log(1, {})
    until = time.monotonic() + 60
    while not warnings and time.monotonic() < until:
        fan_out.log(2, {})
        time.sleep(0.01)
    assert len(warnings) == 1
    assert "the server is away" in warnings[0]
    assert "--sync` sends what is missing" in warnings[0]
    assert bad.calls == ["start", "log"]


def test_an_end_that_cannot_be_sent_in_time_says_so(tmp_path: Path) -> None:
    gate = threading.Event()

    class Stuck(Recorder):
        def log(self, step: int, values: dict[str, float]) -> None:
            gate.wait(60)

    told: list[str] = []
    tracker = Background(Stuck(), told.append, last_seconds=0.05)
    tracker.start(tmp_path, "a", {}, resumed=False)
    tracker.log(1, {})
    with pytest.raises(TimeoutError, match=r"still to be sent 0\.05 s after the end"):
        tracker.finish("done")
    (words,) = told
    assert words.startswith("waiting at most 0.05 s while ")
    gate.set()
