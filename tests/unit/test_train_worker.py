"""One rank started by hand, as by the user's own launcher, in this process."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest

from fakes.runs import STEPS, Run, Workplace, run_file
from headway.run.lock import _start_time, request_stop, this_process
from headway.run.summary import summarise
from headway.train import worker
from headway.train.worker import train_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Prepared with `--dry-run`, then started by hand.

    An earlier job left a request to stop, and the folder of a checkpoint whose first file it did not live to write.
    """
    workplace = Workplace(tmp_path_factory.mktemp("worker"))
    content = run_file("single", launch={"processes": 1}, train={"micro_batch": 8}, export={"at_end": True})
    workplace.headway("train", workplace.write("one", content), "--name", "one", "--dry-run").expect(0)
    run = workplace.run("one")
    request_stop(run.dir, "asked by `headway stop`")
    (run.dir.checkpoints / "step-00000001").mkdir(parents=True)
    train_run(run.dir, SimpleNamespace(received=None))
    return run


def test_a_request_to_stop_ends_one_job_and_not_the_next(run: Run) -> None:
    assert list(run.losses()) == list(range(1, STEPS + 1))


def test_what_an_earlier_launcher_wrote_does_not_hide_how_it_ended(run: Run) -> None:
    """`headway train`, stopped, then torchrun to the end: launch.json still tells of the first."""
    launch = run.path / "launch.json"
    launch.write_text(json.dumps({"state": "stopped", "exit_code": 75, "failure": None}))
    started = run.events("started")[-1]["time"]
    os.utime(launch, (started - 1, started - 1))
    summary = summarise(run.dir)
    assert (summary.state, summary.exit_code, summary.attempts) == ("done", 0, 1)


def test_an_export_that_is_made_again_keeps_the_held_out_figures(run: Run) -> None:
    """A run that was killed between its last save and its export has no step left, and evaluates nothing."""
    first = json.loads((run.dir.export / "headway.json").read_text())["evaluation"]
    assert first["loss"] > 0
    shutil.rmtree(run.dir.export)
    train_run(run.dir, SimpleNamespace(received=None))
    assert json.loads((run.dir.export / "headway.json").read_text())["evaluation"] == first
    assert len(run.events("evaluation")) == STEPS // 2


def test_a_second_job_is_refused_and_leaves_no_words(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    someone = replace(this_process(), pid=1, started=_start_time(1) or "")
    run.dir.lock.write_text(json.dumps(asdict(someone)))
    said: list[int] = []
    monkeypatch.setattr("os._exit", said.append)
    monkeypatch.setattr(worker, "StopSignals", lambda: SimpleNamespace(received=None))
    worker.main(str(run.path))
    assert said == [2]
    assert not run.dir.rank_error(0).exists()
    run.dir.lock.write_text("")
