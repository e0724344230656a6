"""A prepared run directory under the user's own launcher is the run that `headway train` starts."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from fakes.jobs import wait_for
from fakes.runs import BROKEN, SECONDS, Run, Straight, Workplace, end_of, run_file
from headway.launch.ports import any_free_port
from headway.run.lock import live_holder

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(900)]

BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    return Workplace(tmp_path_factory.mktemp("launchers"))


@pytest.fixture(scope="module")
def straight(workplace: Workplace) -> Straight:
    return Straight(workplace)


def prepared(workplace: Workplace, strategy: str, name: str, **sections: Any) -> Run:
    """What `headway train --dry-run` leaves: everything but the start."""
    path = workplace.write(name, run_file(strategy, **sections))
    workplace.headway("train", path, "--name", name, "--dry-run").expect(0)
    return workplace.run(name)


def torchrun(run: Run, ranks: int) -> list[str | Path]:
    return [BIN / "torchrun", "--standalone", f"--nproc_per_node={ranks}", "-m", "headway.train.worker", run.path]


def deepspeed(run: Run) -> list[str | Path]:
    """On a CPU its launcher takes the number of ranks as --num_gpus too; its default port is a fixed one.

    By way of the interpreter: DeepSpeed's script names it in its first line, where no system takes a path with a space.
    """
    words = [sys.executable, BIN / "deepspeed", "--num_gpus", "2", "--master_port", str(any_free_port())]
    return [*words, "--module", "headway.train.worker", run.path]


@pytest.mark.parametrize(("launcher", "strategy"), [("torchrun", "ddp"), ("deepspeed", "zero-2")])
def test_ctrl_c_and_the_same_command_again(
    launcher: str, strategy: str, workplace: Workplace, straight: Straight
) -> None:
    """Ctrl-C reaches every process of a terminal, and both launchers pass it on as a signal of their own.

    A launcher of the user's says nothing of a resume: a directory with checkpoints goes on by itself.
    """
    watch = workplace.watch(launcher)
    watch.plant("hold")
    run = prepared(workplace, strategy, launcher, task=watch.task)
    command = torchrun(run, 2) if launcher == "torchrun" else deepspeed(run)
    process = workplace.start(command)
    try:
        wait_for(lambda: watch.held() or process.poll() is not None, "the rank to reach the step", SECONDS)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
    finally:
        said = end_of(process)
    wait_for(lambda: live_holder(run.dir) is None, "the ranks to save and end", SECONDS)
    assert said.code != 0
    assert run.checkpoints()[-1] == f"step-{BROKEN:08d}", said.out
    assert run.events("stopping")[-1]["step"] == BROKEN
    assert "stopped" in workplace.headway("show", run.path).expect(0).out

    watch.heal()
    said = end_of(workplace.start(command)).expect(0)
    assert "Warning" not in said.out
    assert run.events("resumed")[-1]["step"] == BROKEN
    assert run.losses() == straight[strategy].losses()
    assert run.state() == straight[strategy].state()
    assert "done" in workplace.headway("show", run.path).expect(0).out


def test_torchrun_with_another_number_of_ranks(workplace: Workplace) -> None:
    run = prepared(workplace, "ddp", "one-rank")
    said = end_of(workplace.start(torchrun(run, 1)))
    assert said.code != 0
    assert "the plan is for 2 processes, 1 were started" in said.out
    assert "torchrun --nproc_per_node=2" in said.out
    assert run.losses() == {}


@pytest.mark.parametrize("strategy", ["ddp", "zero-2"])
def test_the_ranks_logs_hold_no_warnings(strategy: str, straight: Straight) -> None:
    logs = [straight[strategy].dir.logs(rank).read_text() for rank in (0, 1)]
    assert "step 8/8" in logs[0]
    assert not [line for log in logs for line in log.splitlines() if "Warning" in line]
