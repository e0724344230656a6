"""A prepared run directory under the user's own launcher is the run that `headway train` starts."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from fakes.runs import EVERY, STEPS, Run, Straight, Workplace, end_of, run_file
from headway.launch.ports import any_free_port

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(900)]

BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    return Workplace(tmp_path_factory.mktemp("launchers"))


@pytest.fixture(scope="module")
def straight(workplace: Workplace) -> Straight:
    return Straight(workplace)


def prepared(workplace: Workplace, strategy: str, name: str) -> Run:
    """What `headway train --dry-run` leaves: everything but the start."""
    path = workplace.write(name, run_file(strategy))
    workplace.headway("train", path, "--name", name, "--dry-run").expect(0)
    return workplace.run(name)


def torchrun(workplace: Workplace, run: Run, ranks: int) -> list[str | Path]:
    return [BIN / "torchrun", "--standalone", f"--nproc_per_node={ranks}", "-m", "headway.train.worker", run.path]


def test_under_torchrun(workplace: Workplace, straight: Straight) -> None:
    run = prepared(workplace, "ddp", "torchrun")
    assert run.losses() == {}
    said = end_of(workplace.start(torchrun(workplace, run, 2))).expect(0)
    assert "Warning" not in said.out
    assert run.losses() == straight["ddp"].losses()
    assert run.state() == straight["ddp"].state()
    assert "done" in workplace.headway("show", run.path).expect(0).out

    # torchrun says nothing of a restart: a directory with checkpoints goes on by itself.
    shutil.rmtree(run.dir.checkpoints / f"step-{STEPS:08d}")
    end_of(workplace.start(torchrun(workplace, run, 2))).expect(0)
    assert run.events("resumed")[-1]["step"] == 2 * EVERY
    assert run.losses() == straight["ddp"].losses()
    assert run.state() == straight["ddp"].state()


def test_torchrun_with_another_number_of_ranks(workplace: Workplace) -> None:
    run = prepared(workplace, "ddp", "one-rank")
    said = end_of(workplace.start(torchrun(workplace, run, 1)))
    assert said.code != 0
    assert "the plan is for 2 processes, 1 were started" in said.out
    assert "torchrun --nproc_per_node=2" in said.out
    assert run.losses() == {}


def test_under_deepspeed(workplace: Workplace, straight: Straight) -> None:
    """On a CPU its launcher takes the number of ranks as --num_gpus too."""
    run = prepared(workplace, "zero-2", "deepspeed")
    port = any_free_port()  # its default is a fixed one
    words = [BIN / "deepspeed", "--num_gpus", "2", "--master_port", str(port)]
    words += ["--module", "headway.train.worker", run.path]
    said = end_of(workplace.start(words)).expect(0)
    assert "Warning" not in said.out
    assert run.losses() == straight["zero-2"].losses()
    assert run.state() == straight["zero-2"].state()


@pytest.mark.parametrize("strategy", ["ddp", "zero-2"])
def test_the_ranks_logs_hold_no_warnings(strategy: str, straight: Straight) -> None:
    logs = [straight[strategy].dir.logs(rank).read_text() for rank in (0, 1)]
    assert "step 8/8" in logs[0]
    assert not [line for log in logs for line in log.splitlines() if "Warning" in line]
