"""The live display, drawn into memory: everything is there, nothing is wider than the terminal."""

from __future__ import annotations

import io
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from fakes.jobs import wait_for
from fakes.plans import LAPTOP, SMALL, plan_of
from headway.check.report import Report, green, yellow
from headway.cli.live import LiveScreen, StatusArea
from headway.cli.seam import Outcome
from headway.cli.state import RunState

PLAN = plan_of(SMALL, LAPTOP)
REPORT = Report((green("disk", "room"), yellow("tokenizer", "19 entries " * 9, "train a smaller one")))
WIDEST = {
    "step": 199,
    "time": 1000.0,
    "loss": 123456.0,
    "grad_norm": 1.23e-05,
    "lr": 1.23e-05,
    "tokens_per_second": 123_456_789.0,
    "mfu": 1.0,
    "step_seconds": 0.0,
    "data_wait_seconds": 100.0,
    "memory_bytes": 1000 * 2**30,
    "memory_peak_bytes": 1023 * 2**30,
}
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def terminal(width: int) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(file=stream, force_terminal=True, width=width, height=50, highlight=False), stream


def drawn(state: RunState, width: int, now: float = 1000.0) -> list[str]:
    console, _ = terminal(width)
    area = StatusArea(state, lambda: now)
    return ["".join(segment.text for segment in line).rstrip() for line in console.render_lines(area)]


def state(**changes: Any) -> RunState:
    state = RunState()
    state.take_plan(PLAN)
    state.take_metrics({**WIDEST, "step": 198, "time": 998.0})
    state.take_event({"event": "checkpoint", "step": 100, "time": 400.0})
    state.take_metrics({**WIDEST, **changes})
    return state


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_every_figure_is_shown_whole(width: int) -> None:
    lines = drawn(state(), width)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= width
    assert "…" not in text
    for figure in ("step 199/200", "99%", "ETA 2 s", "loss 1.235e+05", "grad norm 1.23e-05", "lr 1.23e-05"):
        assert figure in text
    for figure in ("tokens/s 123M", "MFU 100.0%", "waiting for data 100.0%", "1000.00 GiB now", "1023.00 GiB peak"):
        assert figure in text
    assert "MiB planned" in text
    assert "checkpoint step 100, 10 min ago" in text


def test_columns_stand_still_while_numbers_change() -> None:
    one, other = drawn(state(loss=3.0), 80), drawn(state(loss=123456.0), 80)
    assert [line.find("grad norm") for line in one] == [line.find("grad norm") for line in other]


def test_before_the_first_step_it_says_what_is_waited_for() -> None:
    state = RunState()
    state.take_event({"event": "started", "time": 990.0})
    assert "starting the ranks, 10 s" in drawn(state, 60)[0]
    state.take_event({"event": "process_group", "time": 995.0})
    assert "building the model, 10 s" in drawn(state, 60)[0]


@pytest.mark.parametrize("width", [60, 100])
def test_a_whole_run(width: int, tmp_path: Path) -> None:
    console, stream = terminal(width)
    (tmp_path / "export").mkdir()
    with LiveScreen(console, clock=lambda: 1000.0) as screen:
        screen.waiting("looking")
        progress = screen.progress("reading")
        progress.start(100)
        progress.advance(10)
        progress.note("3 skipped")
        screen.plan(SimpleNamespace(plan=PLAN, report=REPORT))
        screen.checks(REPORT)
        screen.event({"time": 0.0, "event": "started"})
        screen.event({"time": 0.0, "event": "sample_data", "text": "[red]not markup[/red]\x1b[31m"})
        screen.metrics(WIDEST)
        screen.event({"time": 0.0, "event": "warning", "text": "[/] care"})
        screen.event({"time": 0.0, "event": "sample", "prompt": "def ", "text": "main()"})
        screen.finish(Outcome(tmp_path, "done", 200, 10**6, 60.0, tmp_path / "export", ("steps: planned 2, done 1",)))
    text = ANSI.sub("", stream.getvalue())
    words = " ".join(text.split())
    for part in ("3 skipped", "zero-2", "checks: 1 of 2 are green", "[red]not markup[/red]\\u001b[31m", "def main()"):
        assert part in words
    for part in (
        "warning: [/] care",
        "NOT AS PLANNED: steps: planned 2, done 1",
        "done: 200 steps, 1M tokens in 1 min",
    ):
        assert part in words
    assert "step 199/200" in words
    printed = [line for part in text.split("\n") for line in part.split("\r")]
    assert max(map(len, printed)) <= width


def test_an_error_leaves_the_terminal_as_it_was() -> None:
    console, stream = terminal(80)

    def fail() -> None:
        with LiveScreen(console, clock=lambda: 0.0) as screen:
            screen.event({"time": 0.0, "event": "started"})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    hidden, shown = "\x1b[?25l", "\x1b[?25h"  # the cursor
    assert stream.getvalue().rfind(shown) > stream.getvalue().rfind(hidden) >= 0
    console.print("usable")
    assert stream.getvalue().endswith("usable\n")


def test_one_redrawn_area_at_a_time() -> None:
    """rich refuses a second one: work that announced more bytes than it read must not break the run's display."""
    console, _ = terminal(80)
    with LiveScreen(console, clock=lambda: 0.0) as screen:
        screen.waiting("looking")
        for _ in range(2):
            progress = screen.progress("reading")
            progress.start(100)
            progress.advance(1)
        screen.event({"time": 0.0, "event": "started"})
        screen.metrics(WIDEST)


def test_what_was_waited_for_leaves_nothing_behind() -> None:
    """One line that says the newest: one that is not ended is drawn below all that follows."""
    before = set(threading.enumerate())
    console, _ = terminal(80)
    with LiveScreen(console, clock=lambda: 0.0) as screen:
        screen.waiting("the main run")
        screen.waiting("the killed run")
    wait_for(lambda: set(threading.enumerate()) <= before, "the drawing to end", 5)
