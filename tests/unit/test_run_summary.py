"""What became of a run is read from its files, also from torn and damaged ones."""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from headway.run.journal import Journal
from headway.run.lock import JobLock, this_process
from headway.run.paths import RunDir, create
from headway.run.summary import is_running, list_checkpoints, summarise, summarise_all

DEAD = replace(this_process(), started="1")
PLAN = {
    "digest": "",
    "plan": {
        "schedule": {"steps": 500, "tokens": 10**6},
        "strategy": {"kind": "deepspeed", "stage": 2, "offload_optimizer": True, "offload_parameters": False},
    },
}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = create(tmp_path, "a")
    run.plan.write_text(json.dumps(PLAN))
    return run


def write_events(run: RunDir, *events: str | tuple[str, dict[str, Any]]) -> None:
    with Journal(run.events) as journal:
        for event in events:
            name, fields = (event, {}) if isinstance(event, str) else event
            journal.event(name, **fields)


def write_launch(run: RunDir, **fields: Any) -> None:
    record = {"supervisor": asdict(DEAD), "state": "running", "exit_code": None, "failure": None, **fields}
    (run.path / "launch.json").write_text(json.dumps(record))


def write_checkpoint(run: RunDir, name: str, step: int, serial: int) -> None:
    folder = run.checkpoints / name
    folder.mkdir(parents=True)
    (folder / "state.json").write_bytes(b"x" * 10)
    manifest = {"step": step, "serial": serial, "time": 1.5, "files": [{"name": "state.json", "size_bytes": 10}]}
    (folder / "manifest.json").write_text(json.dumps({"manifest": manifest}))


def test_a_run_that_never_started(run: RunDir) -> None:
    summary = summarise(run)
    assert (summary.state, summary.step, summary.steps, summary.tokens_planned) == ("new", 0, 500, 10**6)
    assert summary.strategy == "zero-2 +offload(optimizer)"
    assert (summary.started, summary.exit_code, summary.best_evaluation) == (None, None, None)


def test_an_empty_folder_has_a_summary(tmp_path: Path) -> None:
    assert summarise(RunDir(tmp_path)).state == "new"


@pytest.mark.parametrize(
    ("events", "state", "exit_code"),
    [
        (["started"], "crashed", None),
        (["notice"], "crashed", None),
        (["started", "done", "export"], "done", 0),
        (["started", "stopping"], "stopped", 75),
        (["started", "stopping", "checkpoint"], "stopped", 75),
        (["started", "stopping", "started"], "crashed", None),
        (["started", "stopping", "started", "done"], "done", 0),
        (["started", ("failed", {"rank": 1, "error": "boom"})], "failed", 5),
        (["started", ("failed", {"rank": 1, "error": "boom"}), "stopping"], "failed", 5),
        (["started", ("failed", {"error": "boom", "exit_code": 6})], "failed", 6),
        (["started", ("failed", {"error": "boom"})], "failed", 1),
    ],
)
def test_states_from_the_events(run: RunDir, events: list[Any], state: str, exit_code: int | None) -> None:
    write_events(run, *events)
    summary = summarise(run)
    assert (summary.state, summary.exit_code) == (state, exit_code)
    assert summary.failure == ("boom" if state == "failed" else "")


def test_a_rank_s_own_exit_code_counts(run: RunDir) -> None:
    run.rank_error(1).write_text(json.dumps({"exit_code": 9}))
    write_events(run, "started", ("failed", {"rank": 1, "error": "diverged"}))
    assert summarise(run).exit_code == 9


def test_a_held_lock_means_running(run: RunDir) -> None:
    write_events(run, "started", "done", "started")
    with JobLock(run):
        assert summarise(run).state == "running"
        assert summarise(run).ended is None
        assert is_running(run)
    assert not is_running(run)
    assert summarise(run).state == "crashed"


def test_the_launcher_s_record_counts(run: RunDir) -> None:
    write_events(run, "started", "stopping")
    write_launch(run, state="failed", exit_code=6, failure={"rank": 0, "error": "disk full"})
    summary = summarise(run)
    assert (summary.state, summary.exit_code, summary.failure) == ("failed", 6, "disk full")
    write_launch(run)
    assert summarise(run).state == "crashed"
    write_launch(run, supervisor=asdict(this_process()))
    assert summarise(run).state == "running"
    assert is_running(run)


def test_a_later_start_without_the_launcher_outdates_its_record(run: RunDir) -> None:
    write_launch(run, state="failed", exit_code=6, failure={"rank": 0, "error": "disk full"})
    os.utime(run.path / "launch.json", (time.time() - 100, time.time() - 100))
    write_events(run, "started", "done")
    assert summarise(run).state == "done"


def test_figures_after_a_resume(run: RunDir) -> None:
    with Journal(run.metrics) as journal:
        for step, loss in ((1, 5.0), (2, 4.0), (3, 3.0), (2, 4.5)):
            journal.append({"step": step, "loss": loss, "tokens": step * 100})
    write_events(run, "started", "started", ("evaluation", {"step": 1, "loss": math.nan}))
    write_events(run, ("evaluation", {"step": 2, "loss": 3.5}), ("evaluation", {"step": 3, "loss": 3.9}))
    write_events(run, ("export", {"path": "export", "verified": True}))
    summary = summarise(run)
    assert (summary.step, summary.tokens, summary.last["loss"], summary.attempts) == (2, 200, 4.5, 2)
    assert summary.best_evaluation is not None
    assert summary.best_evaluation["loss"] == 3.5
    assert summary.evaluation is not None
    assert summary.evaluation["loss"] == 3.9
    assert summary.export is not None
    assert summary.export["verified"] is True


def test_the_end_counts_where_not_every_step_is_logged(run: RunDir) -> None:
    with Journal(run.metrics) as journal:
        journal.append({"step": 490, "tokens": 49})
    write_events(run, ("done", {"steps": 500, "tokens": 50}))
    assert (summarise(run).step, summarise(run).tokens) == (500, 50)


def test_checkpoints_in_the_order_of_their_saving(run: RunDir) -> None:
    write_checkpoint(run, "step-00000200", 200, 2)
    write_checkpoint(run, "step-00000100", 100, 1)
    write_checkpoint(run, "step-00000150", 150, 3)
    (run.checkpoints / "step-00000110").mkdir()
    (run.checkpoints / "step-00000175").mkdir()
    (run.checkpoints / "step-00000175" / "rank-00000.json").write_text("{}")
    (run.checkpoints / "step-00000200" / "state.json").write_bytes(b"short")
    found = list_checkpoints(run)
    assert [(item.step, item.bytes, item.complete) for item in found] == [
        (175, 0, False),
        (100, 10, True),
        (200, 10, False),
        (150, 10, True),
    ]


def test_damaged_files_leave_gaps(run: RunDir) -> None:
    run.plan.write_text("{")
    run.events.write_text('{"event": "started"}\n{"eve')
    run.metrics.write_text("[]\n\x00\n")
    (run.path / "launch.json").write_text('{"state": "running", "supervisor": 3}')
    summary = summarise(run)
    assert (summary.state, summary.steps, summary.step) == ("crashed", 0, 0)


def test_logs_are_sorted_by_rank(run: RunDir) -> None:
    for rank in (10, 2, 0):
        run.logs(rank).write_text("")
    assert [path.name for path in summarise(run).logs] == ["rank-0.log", "rank-2.log", "rank-10.log"]


def test_all_runs(run: RunDir, tmp_path: Path) -> None:
    assert [summary.name for summary in summarise_all(tmp_path)] == [run.name]


def test_lines_of_odd_types_leave_gaps(run: RunDir) -> None:
    run.events.write_text('{"event": "started", "time": "soon"}\n{"event": "done", "time": null, "steps": "x"}\n')
    run.metrics.write_text('{"step": 3, "time": [], "loss": "low"}\n')
    write_launch(run, state="done", exit_code="x")
    summary = summarise(run)
    assert (summary.state, summary.step, summary.started, summary.ended) == ("done", 3, None, None)


def test_a_checkpoint_that_goes_while_it_is_looked_at(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(run, "step-00000003", 3, 1)
    folder = run.checkpoints / "step-00000001"
    monkeypatch.setattr(Path, "glob", lambda *_: iter([folder / "state.json", run.checkpoints / "step-00000003" / "x"]))
    assert [found.step for found in list_checkpoints(run)] == [3]
