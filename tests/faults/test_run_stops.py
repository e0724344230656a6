"""What ends a run before its time: a rank's own error, Ctrl-C, SIGTERM, `headway stop`, a time limit.

Whoever asks a run to stop, it saves and says so with exit code 75, and goes on later as if nothing had been.
"""

from __future__ import annotations

import math
import os
import re
import signal
import time
from pathlib import Path

import pytest

from fakes.jobs import wait_for
from fakes.runs import (
    ACCUMULATION,
    BROKEN,
    GLOBAL_BATCH,
    SECONDS,
    STEPS,
    Run,
    Straight,
    Watch,
    Workplace,
    end_of,
    run_file,
)
from fakes.watched_task import ERROR
from headway.data.order import window_at
from headway.errors import Stopped, WorkerFailed

pytestmark = [pytest.mark.faults, pytest.mark.distributed, pytest.mark.timeout(900)]

SECRET = "hf_" + "kZ4tQm9vLx2c" * 2
LOOK_SECONDS = 1.1  # a little longer than the time between a rank's two looks for a request to stop


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    return Workplace(tmp_path_factory.mktemp("stops"))


@pytest.fixture(scope="module")
def straight(workplace: Workplace) -> Straight:
    return Straight(workplace)


def resumes_to(straight: Run, stopped: Run, workplace: Workplace, *overrides: str) -> None:
    """It stopped with a checkpoint of its last step, and its resume ends as the run that was never stopped."""
    step = max(stopped.losses())
    assert step < STEPS
    assert stopped.checkpoints()[-1] == f"step-{step:08d}"
    assert stopped.events("stopping")[-1]["step"] == step
    workplace.headway("resume", stopped.path, *overrides).expect(0)
    assert stopped.events("resumed")[-1]["step"] == step
    assert stopped.losses() == straight.losses()
    assert stopped.state() == straight.state()


def held_run(workplace: Workplace, name: str, strategy: str = "ddp") -> tuple[Watch, Path]:
    """A run file whose rank 1 is held in the middle of the step BROKEN."""
    watch = workplace.watch(name)
    watch.plant("hold")
    return watch, workplace.write(name, run_file(strategy, task=watch.task))


def test_a_rank_that_raises_is_named_with_its_own_error(workplace: Workplace) -> None:
    watch = workplace.watch("raises")
    watch.plant("raise")
    path = workplace.write("raises", run_file("zero-2", task=watch.task))
    ended = workplace.headway("train", path, "--name", "raises").expect(WorkerFailed.exit_code)
    run = workplace.run("raises")
    assert f"rank 1 failed first: ArithmeticError: {ERROR}" in ended.err
    assert str(run.dir.logs(1)) in ended.err
    assert "Traceback" not in ended.out + ended.err
    assert "in _raise" in run.dir.logs(1).read_text()
    assert run.ranks_alive() == []
    assert max(run.losses()) == BROKEN - 1
    failed = run.events("failed")[-1]
    assert (failed["rank"], ERROR in failed["error"]) == (1, True)
    shown = workplace.headway("show", run.path).expect(0).out
    assert "failed" in shown
    assert ERROR in shown


def test_an_error_in_the_loader_reaches_the_user(workplace: Workplace) -> None:
    """A sample that cannot be made into a batch: raised in the loader's thread, ahead of the step that needs it."""
    watch = workplace.watch("loader")
    path = workplace.write("loader", run_file("ddp", task=watch.task))
    workplace.headway("train", path, "--name", "loader", "--dry-run").expect(0)
    plan = workplace.run("loader").plan()
    first = (BROKEN - 1) * GLOBAL_BATCH  # the first sample of a step is rank 0's
    watch.plant("raise", rank=0, window=window_at(plan.numerics.seed, first, plan.facts.train_windows))
    ended = workplace.headway("train", path, "--name", "loader").expect(WorkerFailed.exit_code)
    assert f"rank 0 failed first: ArithmeticError: {ERROR}" in ended.err
    assert max(workplace.run("loader").losses()) == BROKEN - 1


def test_ctrl_c(workplace: Workplace, straight: Straight) -> None:
    """To the whole process group, as a terminal sends it. The environment's secrets stay out of the run's files."""
    watch, path = held_run(workplace, "ctrl-c")
    launcher = workplace.start(workplace.command("train", path, "--name", "ctrl-c"), HF_TOKEN=SECRET)
    try:
        wait_for(lambda: watch.held() or launcher.poll() is not None, "the rank to reach the step", SECONDS)
        if launcher.poll() is None:
            os.killpg(launcher.pid, signal.SIGINT)
    finally:
        ended = end_of(launcher)
    ended.expect(Stopped.exit_code)
    assert "headway resume" in ended.out
    assert "Traceback" not in ended.out
    run = workplace.run("ctrl-c")
    assert max(run.losses()) == BROKEN
    watch.heal()
    resumes_to(straight["ddp"], run, workplace)
    files = [path for path in run.path.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    assert '"HF_TOKEN": "[removed]"' in run.dir.record.read_text()


def test_sigterm(workplace: Workplace, straight: Straight) -> None:
    watch, path = held_run(workplace, "sigterm", "zero-3")
    with watch.when_held(lambda: os.kill(os.getpid(), signal.SIGTERM)):
        ended = workplace.headway("train", path, "--name", "sigterm")
    ended.expect(Stopped.exit_code)
    run = workplace.run("sigterm")
    assert max(run.losses()) == BROKEN
    watch.heal()
    resumes_to(straight["zero-3"], run, workplace)


def test_headway_stop(workplace: Workplace, straight: Straight) -> None:
    watch, path = held_run(workplace, "stop")

    def stop() -> None:
        name = workplace.run("stop").dir.name
        end_of(workplace.start(workplace.command("stop", name))).expect(0)
        time.sleep(LOOK_SECONDS)
        watch.let_go()

    with watch.when_held(stop):
        workplace.headway("train", path, "--name", "stop").expect(Stopped.exit_code)
    run = workplace.run("stop")
    assert "headway stop" in run.events("stopping")[-1]["reason"]
    watch.heal()
    resumes_to(straight["ddp"], run, workplace)


def test_the_time_limit(workplace: Workplace, straight: Straight) -> None:
    """At the first step's end after it, wherever a slow machine stands by then; a resume may lift it."""
    watch, _ = held_run(workplace, "limit")
    limited = run_file("ddp", task=watch.task, train={"stop_after": "1 s"})

    def outlast() -> None:
        time.sleep(LOOK_SECONDS)
        watch.let_go()

    path = workplace.write("limit", limited)
    with watch.when_held(outlast):
        workplace.headway("train", path, "--name", "limit").expect(Stopped.exit_code)
    run = workplace.run("limit")
    assert "train.stop_after" in run.events("stopping")[-1]["reason"]
    watch.heal()
    resumes_to(straight["ddp"], run, workplace, "train.stop_after=null")


def test_trn_05_a_step_whose_loss_is_no_number_is_discarded_and_counted(workplace: Workplace) -> None:
    """One rank's loss in step 3 of 5: the log says so, no rank applies the step, and the summary counts it."""
    watch = workplace.watch("spoilt")
    watch.plant("spoil", micro_batch=2 * ACCUMULATION + 1)
    content = run_file("zero-2", train={"length": "5 steps", "eval_every": None})
    content |= {"task": watch.task, "checkpoint": {"every": "1 steps", "keep": 5}}
    run = workplace.train("spoilt", content)
    lines = {line["step"]: line for line in run.metrics()}
    assert math.isnan(lines[3]["loss"])
    assert [lines[step]["applied"] for step in range(1, 6)] == [True, True, False, True, True]
    assert all(math.isfinite(lines[step]["loss"]) for step in (1, 2, 4, 5))
    assert [event["text"] for event in run.events("warning")] == [
        "step 3 is discarded, the weights stay as they were: its loss or its gradients are not finite"
    ]
    states = [run.state_at(step) for step in range(1, 6)]
    assert states[1] == states[2]
    assert len({tuple(state.items()) for state in states}) == 4
    assert run.events("done")[-1]["discarded"] == 1
    assert re.search(r"discarded steps +0 +1 ", workplace.headway("show", run.path).expect(0).out)
