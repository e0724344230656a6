"""Looking at runs: following one, comparing two."""

from __future__ import annotations

import time
from pathlib import Path

from headway.api.differing import differences
from headway.api.running import Feed
from headway.cli.seam import Comparison, Screen
from headway.plan.files import read_plan
from headway.run.paths import RunDir
from headway.run.summary import is_running, summarise

_POLL_SECONDS = 0.25


def compare(a: Path, b: Path) -> Comparison:
    left, right = RunDir(a), RunDir(b)
    return Comparison(
        summarise(left), summarise(right), tuple(differences(read_plan(left.plan), read_plan(right.plan)))
    )


def follow(path: Path, screen: Screen) -> None:
    """Feed the screen from the run's first line until it has ended."""
    run = RunDir(path)
    feed = Feed(run, screen, from_start=True)
    while True:
        running = is_running(run)
        feed.poll()
        if not running or feed.lost:
            return
        time.sleep(_POLL_SECONDS)
