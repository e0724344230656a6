"""What a run shows while it runs, and what it does when nobody can be shown anything any more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headway.api import looking
from headway.api.running import Feed
from headway.cli.seam import Outcome, Screen
from headway.run.journal import Journal
from headway.run.paths import RunDir


class Closing(Screen):
    """A pipe whose reader goes away after so many lines."""

    def __init__(self, lines: int):
        self.left, self.seen = lines, []

    def event(self, event: Any) -> None:
        if self.left == 0:
            raise BrokenPipeError
        self.left -= 1
        self.seen.append(event["text"])

    def finish(self, outcome: Outcome) -> None:
        raise BrokenPipeError


def said(run: RunDir, *texts: str) -> None:
    with Journal(run.events) as events:
        for text in texts:
            events.event("notice", text=text)


def test_a_screen_that_goes_away_ends_nothing(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    screen = Closing(1)
    feed = Feed(run, screen)
    said(run, "a", "b", "c")
    feed.poll()
    said(run, "d")
    feed.poll()
    feed.finish(Outcome(tmp_path, "done", 1, 1, 1.0))
    assert feed.lost
    assert screen.seen == ["a"]


def test_a_screen_that_goes_away_at_the_end_ends_nothing(tmp_path: Path) -> None:
    feed = Feed(RunDir(tmp_path), Closing(1))
    feed.finish(Outcome(tmp_path, "done", 1, 1, 1.0))
    assert feed.lost


def test_following_ends_with_the_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said(RunDir(tmp_path), "a", "b")
    monkeypatch.setattr(looking, "is_running", lambda run: True)
    looking.follow(tmp_path, Closing(1))
