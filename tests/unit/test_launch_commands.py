"""What is printed is what runs: golden text, ports, and the records beside it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.jobs import FAKE, fake_job, launch_plan, trace
from headway.launch import files
from headway.launch.commands import rank_command, rank_environment, render
from headway.launch.local import LocalLauncher
from headway.launch.ports import any_free_port, choose_port, is_free, says_port_taken
from headway.launch.seam import JobSpec, RankFailure
from headway.run.lock import this_process

GOLDEN = """\
#!/bin/sh
# headway: 2 ranks on this machine, one process each, each with its own log
cd '/home/a b' || exit
mkdir -p '/runs/my run/logs'
env RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 DS_ACCELERATOR=cpu \
EXTRA=1 OMP_NUM_THREADS=3 PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false \
PYTHON -m headway.train.worker '/runs/my run' </dev/null >>'/runs/my run/logs/rank-0.log' 2>&1 &
env RANK=1 LOCAL_RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 DS_ACCELERATOR=cpu \
EXTRA=1 OMP_NUM_THREADS=3 PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false \
PYTHON -m headway.train.worker '/runs/my run' </dev/null >>'/runs/my run/logs/rank-1.log' 2>&1 &
wait
"""


def test_the_rendered_text_is_the_golden_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "PYTHON")
    job = JobSpec(Path("/runs/my run"), launch_plan(threads=3), environment={"EXTRA": "1"})
    assert render(job, 29500, "headway.train.worker", Path("/home/a b")) == GOLDEN


def test_on_gpus_no_accelerator_is_forced() -> None:
    job = JobSpec(Path("/runs/a"), launch_plan(device="cuda", backend="nccl"))
    assert "DS_ACCELERATOR" not in rank_environment(job, 0, 1)


def test_a_resumed_job_tells_its_ranks() -> None:
    fresh = JobSpec(Path("/runs/a"), launch_plan())
    resumed = JobSpec(Path("/runs/a"), launch_plan(), resume=True)
    assert "HEADWAY_RESUME" not in rank_environment(fresh, 0, 1)
    assert rank_environment(resumed, 0, 1)["HEADWAY_RESUME"] == "1"


def test_the_job_may_replace_threads_but_not_a_rank() -> None:
    job = JobSpec(Path("/runs/a"), launch_plan(), environment={"OMP_NUM_THREADS": "7", "RANK": "9"})
    assert rank_environment(job, 1, 1)["OMP_NUM_THREADS"] == "7"
    assert rank_environment(job, 1, 1)["RANK"] == "1"


def test_the_printed_script_runs_by_hand(tmp_path: Path) -> None:
    job = fake_job(tmp_path / "a run", {0: ["print hello"], 1: []}, port=any_free_port())
    launcher = LocalLauncher()
    script = launcher.render(job).replace("headway.train.worker", FAKE)
    subprocess.run(["/bin/sh", "-c", script], check=True, timeout=60)
    assert trace(job.run_dir, 1, "environment") | {"EXTRA": ""} == rank_traced(job, 1) | {"EXTRA": ""}
    assert trace(job.run_dir, 0, "argv") == [str(job.run_dir)]
    assert "python: hello" in (job.run_dir / "logs" / "rank-0.log").read_text()


def rank_traced(job: JobSpec, rank: int) -> dict[str, str]:
    """The variables that the fake worker reports, as the job sets them."""
    environment = rank_environment(job, rank, job.launch.port or 0)
    return {name: value for name, value in environment.items() if name != "PYTHONPATH"}


def test_every_rank_is_one_line_of_the_script(tmp_path: Path) -> None:
    job = fake_job(tmp_path, {0: [], 1: [], 2: []})
    lines = render(job, 1234, FAKE).splitlines()
    for rank in range(3):
        assert f"{rank_command(job, rank, 1234, FAKE)} &" in lines


def test_a_directory_keeps_its_port_while_it_is_free(tmp_path: Path) -> None:
    port = choose_port(None, tmp_path)
    assert port == choose_port(None, tmp_path)
    assert 20_000 <= port < 30_000


def test_a_busy_port_is_replaced(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        busy = server.getsockname()[1]
        assert not is_free(busy)
        assert choose_port(busy, tmp_path) != busy
    assert choose_port(busy, tmp_path) == busy


def test_torchs_words_for_a_taken_port_are_known() -> None:
    words = (
        "The server socket has failed to listen on any local network address. port: 29500, useIPv6: false, "
        "code: -98, name: EADDRINUSE, message: address already in use"
    )
    assert says_port_taken(words)
    assert not says_port_taken("Connection closed by peer [127.0.0.1]:29500")


def test_launch_json_reads_back(tmp_path: Path) -> None:
    assert files.read_record(tmp_path) is None
    failure = RankFailure(1, -9, "killed", tmp_path / "logs" / "rank-1.log")
    record = files.LaunchRecord(this_process(), "fork", 29500, {"0": 11, "1": 12}, "failed", 5, failure)
    files.write_record(tmp_path, record)
    assert files.read_record(tmp_path) == record
    assert [path.name for path in tmp_path.iterdir()] == ["launch.json"]


def test_a_record_whose_supervisor_is_gone_is_a_failed_job(tmp_path: Path) -> None:
    record = files.LaunchRecord(this_process(), "exec", 29500)
    assert record.status().state == "running"
    text = json.dumps({"time": 1.0})
    (tmp_path / "x").write_text(text)
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    gone = files.LaunchRecord(this_process().__class__(**{**vars(record.supervisor), "pid": child.pid}), "exec", 1)
    assert gone.status().state == "failed"
    assert os.getpid() == record.supervisor.pid


def test_logs_of_a_second_start_follow_a_separator(tmp_path: Path) -> None:
    files.prepare_logs(tmp_path, 2)
    log = tmp_path / "logs" / "rank-0.log"
    assert log.read_text() == ""
    log.write_text("first\n")
    (tmp_path / "logs" / "rank-1.error.json").write_text("{}")
    files.prepare_logs(tmp_path, 2)
    assert log.read_text().startswith("first\n======== started again ")
    assert (tmp_path / "logs" / "rank-1.log").read_text() == ""
    assert not (tmp_path / "logs" / "rank-1.error.json").exists()
