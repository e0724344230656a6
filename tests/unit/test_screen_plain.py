"""What a pipe or a log file gets of a run: plain lines, throttled, complete at both ends."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fakes.plans import LAPTOP, SMALL, plan_of
from headway.check.report import Report, green, yellow
from headway.cli.lines import aligned, check_lines, event_lines, headline, printable, what_next
from headway.cli.plain import PlainProgress, PlainScreen
from headway.cli.screen import make_screen
from headway.cli.seam import Outcome, RunScreen
from headway.cli.state import RunState

PLAN = plan_of(SMALL, LAPTOP)
REPORT = Report((green("disk", "room"), yellow("tokenizer", "19 entries unused", "train a smaller one")))


def metrics(step: int, time: float, **more: Any) -> dict[str, Any]:
    line = {"step": step, "time": time, "loss": 3.14159, "grad_norm": 0.75, "lr": 6e-4, "tokens": step * 1000}
    line |= {"tokens_per_second": 12_345.6, "mfu": 0.412, "step_seconds": 0.9, "data_wait_seconds": 0.1}
    line |= {"overhead_seconds": 0.0, "memory_bytes": 2**30, "memory_peak_bytes": 2**30, "applied": True}
    return line | more


def plain() -> tuple[PlainScreen, io.StringIO]:
    stream = io.StringIO()
    return PlainScreen(stream, clock=lambda: 0.0), stream


def test_a_whole_run(tmp_path: Path) -> None:
    screen, stream = plain()
    (tmp_path / "checkpoints" / "step-00000020").mkdir(parents=True)
    (tmp_path / "export").mkdir()
    screen.plan(SimpleNamespace(plan=PLAN, report=REPORT))
    screen.checks(REPORT)
    screen.event({"time": 0.0, "event": "started", "resume": False})
    screen.event({"time": 0.1, "event": "sample_data", "text": "one\ttwo\n\x1b[31mred"})
    screen.event({"time": 9.0, "event": "first_step", "step": 1, "seconds": 8.9})
    for step in range(1, 21):
        screen.metrics(metrics(step, 10.0 + step / 2))
    screen.event({"time": 20.5, "event": "checkpoint", "step": 20, "seconds": 0.5, "bytes": 3 * 2**20})
    evaluation = {"loss": 3.0, "perplexity": 20.0855, "bits_per_byte": 1.32, "gzip_bits_per_byte": 2.1, "accuracy": 0.5}
    screen.event({"time": 21.0, "event": "evaluation", "step": 20, "seconds": 1.0, **evaluation})
    screen.event({"time": 22.0, "event": "export", "path": "x/export", "verified": True, "max_difference": 2e-6})
    screen.event({"time": 23.0, "event": "sample", "prompt": "def ", "text": "main():"})
    screen.finish(Outcome(tmp_path, "done", 20, 20_000, 23.0, tmp_path / "export", ("tokens: planned 5, read 4",)))
    lines = stream.getvalue().splitlines()
    assert not {"\x1b", "\r"} & set(stream.getvalue())
    assert lines[0] == "plan:"
    assert any(line.split() == ["strategy", "zero-2"] for line in lines)
    assert "checks: 1 of 2 are green" in lines
    assert "    fix: train a smaller one" in lines
    assert lines[lines.index("one training sample, decoded:") + 1 :][:2] == ["  | one two", "  | \\u001b[31mred"]
    assert "first step after 8.9 s" in lines
    steps = [line for line in lines if line.startswith("step ") and "lr " in line]
    assert steps[0].startswith("step 1/200  loss 3.142  grad 0.750  lr 0.0006  tokens/s 12.3k  MFU 41.2%  wait 10.0%")
    assert steps[-1].startswith("step 20/200")
    assert len(steps) == 11  # ten seconds of training, and the last step
    assert "step 20  checkpoint saved: 3.00 MiB in 0.5 s" in lines
    expected = "step 20  held out:  loss 3.000  perplexity 20.09  bits per byte 1.32  (gzip -9: 2.1)  accuracy 0.5"
    assert expected in lines
    assert "exported to x/export: plain transformers gives the same logits (largest logit difference 2e-06)" in lines
    assert "  | def main():" in lines
    assert "NOT AS PLANNED: tokens: planned 5, read 4" in lines
    assert "done: 20 steps, 20k tokens in 23 s" in lines
    assert lines[-3:] == ["next:", f"  headway show {tmp_path}", f'  headway generate {tmp_path} --prompt "..."']


def test_lines_come_about_once_a_second_but_always_at_both_ends() -> None:
    screen, stream = plain()
    for step in range(1, 1001):
        screen.metrics(metrics(step, step / 10))
    before_the_end = stream.getvalue().splitlines()
    with screen:
        pass
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("step 1 ")
    assert len(before_the_end) == 100
    assert not before_the_end[-1].startswith("step 1000 ")
    assert lines[-1].startswith("step 1000 ")
    assert len(lines) == 101


def test_slow_steps_are_all_shown_and_none_twice() -> None:
    screen, stream = plain()
    for step in range(1, 6):
        screen.metrics(metrics(step, step * 30.0))
        screen.event({"time": step * 30.0, "event": "notice", "text": "x"})
    screen.__exit__()
    lines = [line for line in stream.getvalue().splitlines() if line.startswith("step")]
    assert [line.split()[1] for line in lines] == ["1", "2", "3", "4", "5"]


def test_the_newest_step_is_told_before_what_follows_it() -> None:
    screen, stream = plain()
    for step in (1, 2, 3):
        screen.metrics(metrics(step, step / 10))
    screen.event({"time": 1.0, "event": "failed", "rank": 1, "error": "RuntimeError: no"})
    lines = stream.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == ["step 1", "step 3", "rank 1 failed: RuntimeError: no"]


def test_eta_and_age_follow_the_run() -> None:
    state = RunState()
    state.take_plan(PLAN)
    state.take_event({"event": "checkpoint", "time": 100.0, "step": 10})
    for step in range(10, 21):
        state.take_metrics(metrics(step, 100.0 + (step - 10) * 2))
    figures = {figure.name: figure.value for figure in state.figures(now=120.0)}
    assert figures["ETA"] == "6 min"  # 180 of 200 steps at 2 s
    assert figures["checkpoint"] == "step 10, 20 s ago"
    assert state.eta_seconds(now=130.0) == 350  # ten seconds later without a new step
    state.take_event({"event": "started", "time": 200.0, "resume": True})
    assert state.eta_seconds(now=200.0) is None  # a pause between two attempts is no speed


def test_what_is_unknown_is_left_out() -> None:
    state = RunState()
    assert state.figures(now=0.0) == []
    state.take_metrics(
        {"step": 3, "loss": float("nan"), "mfu": None, "memory_bytes": "many", "tokens_per_second": True}
    )
    assert [figure.name for figure in state.figures(now=0.0)] == ["loss", "checkpoint"]
    screen, _ = plain()
    screen.event({})
    screen.event({"event": "something new", "time": 5.0})
    screen.metrics({})


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            {"event": "export", "path": "x", "verified": False, "max_difference": 0.5},
            "NOT VERIFIED: logits differ by 0.5",
        ),
        ({"event": "export", "path": "x", "verified": False}, "exported to x, but NOT VERIFIED"),
        ({"event": "stopping", "reason": "SIGTERM"}, "stopping: SIGTERM"),
        ({"event": "warning", "text": "care\x07"}, "warning: care\\u0007"),
        ({"event": "resumed", "checkpoint": "step-00000010", "step": 10}, "resumed from step-00000010"),
        ({"event": "started", "resume": True}, "resuming"),
    ],
)
def test_events_in_words(event: dict[str, Any], line: str) -> None:
    assert line in event_lines(event)[0]


def test_text_cannot_steer_the_terminal() -> None:
    assert printable("a\x1b[2J\x9b\u202e\n\tb\U0001f600é") == "a\\u001b[2J\\u009b\\u202e\n\tb\U0001f600é"


def test_columns_line_up_without_trailing_spaces() -> None:
    assert aligned([("a", "1", "x"), ("bbb", "22", "")]) == ["a    1   x", "bbb  22"]
    assert aligned([]) == []


@pytest.mark.parametrize(
    ("state", "saved", "exported", "commands"),
    [
        ("done", True, True, ["headway show r", 'headway generate r --prompt "..."']),
        ("done", True, False, ["headway show r", "headway export r"]),
        ("stopped", True, False, ["headway resume r"]),
        ("failed", True, False, ["headway show r --logs", "headway resume r"]),
        ("failed", False, False, ["headway show r --logs"]),
    ],
)
def test_what_to_type_next(
    state: Any, saved: bool, exported: bool, commands: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = Path("runs/r")
    (run / "checkpoints").mkdir(parents=True)
    if saved:
        (run / "checkpoints" / "step-00000001").mkdir()
    outcome = Outcome(run, state, 1, 10, 1.0, run / "export" if exported else None)
    assert what_next(outcome) == commands
    assert headline(outcome).startswith({"stopped": "stopped and saved"}.get(state, state))
    elsewhere = tmp_path / "my runs" / "r"
    (elsewhere / "checkpoints" / "step-00000001").mkdir(parents=True)
    assert what_next(replace(outcome, run_dir=elsewhere, state="stopped")) == [f"headway resume '{elsewhere}'"]


def test_a_red_finding_is_shown_with_its_fix() -> None:
    report = Report((replace(yellow("disk", "full", "free\nsome"), level="red"),))
    assert check_lines(report) == ["checks: 0 of 1 are green", "  red: disk: full", "    fix: free\nsome"]


def test_progress_is_a_line_every_few_seconds() -> None:
    said: list[str] = []
    now = 0.0
    progress = PlainProgress("reading", lambda *lines: said.extend(lines), clock=lambda: now)
    progress.start(100)
    for _ in range(20):
        now += 1.0
        progress.advance(6)  # more than announced: sizes are estimates
    progress.note("3 skipped")
    assert said == ["reading: 100 B", "reading: 30%", "reading: 60%", "reading: 90%", "reading: 100%", "3 skipped"]


def test_the_screen_suits_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(make_screen(), PlainScreen)  # pytest's capture is no terminal
    assert isinstance(make_screen(plain=True), PlainScreen)
    live = make_screen(plain=False)
    assert isinstance(live, RunScreen)
    assert not isinstance(live, PlainScreen)
    monkeypatch.setattr("sys.stdout", SimpleNamespace(isatty=lambda: True, write=print, flush=print))
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_screen(), PlainScreen)
