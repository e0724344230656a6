"""Who failed first, in whose words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.launch.verdict import RankEnd, explain_exit, job_exit_code, judge, last_error_line

PEER_GONE = "[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:31337"


def write_error(run_dir: Path, rank: int, time: float, message: str, **extra: object) -> None:
    (run_dir / "logs").mkdir(exist_ok=True)
    error = {"rank": rank, "time": time, "type": "RuntimeError", "message": message, "exit_code": 1, **extra}
    (run_dir / "logs" / f"rank-{rank}.error.json").write_text(json.dumps(error))


def test_all_zero_is_done(tmp_path: Path) -> None:
    status = judge([RankEnd(0, 0, 1.0), RankEnd(1, 0, 2.0)], tmp_path)
    assert (status.state, status.exit_code, status.failure) == ("done", 0, None)


def test_saved_on_request_is_stopped(tmp_path: Path) -> None:
    status = judge([RankEnd(0, 75, 1.0), RankEnd(1, 75, 1.1)], tmp_path)
    assert (status.state, status.exit_code, status.failure) == ("stopped", 75, None)


def test_words_in_the_file_of_a_rank_that_saved_are_not_its_own(tmp_path: Path) -> None:
    """Another job that was started in the same run directory, and refused, may have left them."""
    write_error(tmp_path, 0, time=1.0, message="is in use")
    status = judge([RankEnd(0, 75, 1.0), RankEnd(1, 75, 1.1)], tmp_path)
    assert (status.state, status.exit_code) == ("stopped", 75)


def test_an_echo_is_not_the_first_failure_even_when_it_was_seen_earlier(tmp_path: Path) -> None:
    write_error(tmp_path, 0, time=10.0, message=PEER_GONE)
    write_error(tmp_path, 1, time=10.5, message="no such file: corpus.txt")
    status = judge([RankEnd(0, 1, 10.1), RankEnd(1, 1, 10.6)], tmp_path)
    assert status.failure is not None
    assert (status.failure.rank, status.failure.error) == (1, "RuntimeError: no such file: corpus.txt")
    assert status.failure.log == tmp_path / "logs" / "rank-1.log"


@pytest.mark.parametrize(
    "words",
    [
        PEER_GONE,
        "NCCL error in: ProcessGroupNCCL.cpp:1690, remote process exited",
        "DistBackendError: NCCL communicator was aborted on rank 0",
        "Connection reset by peer",
        "recvValue failed on SocketImpl(fd=54)",
    ],
)
def test_each_way_of_losing_a_peer_is_an_echo(tmp_path: Path, words: str) -> None:
    write_error(tmp_path, 0, time=10.0, message=words)
    status = judge([RankEnd(0, 1, 10.0), RankEnd(1, -9, 10.05)], tmp_path)
    assert status.failure is not None
    assert (status.failure.rank, status.failure.exit_code) == (1, -9)
    assert "out of memory?" in status.failure.error


def test_among_own_errors_the_earliest_wins(tmp_path: Path) -> None:
    write_error(tmp_path, 0, time=11.0, message="second")
    write_error(tmp_path, 1, time=10.0, message="first")
    status = judge([RankEnd(0, 1, 11.0), RankEnd(1, 1, 11.0)], tmp_path)
    assert status.failure is not None
    assert status.failure.rank == 1


def test_a_rank_that_the_launcher_ended_is_not_blamed_for_it(tmp_path: Path) -> None:
    ends = [RankEnd(0, -15, 10.0, ended_by_launcher=True), RankEnd(1, 3, 10.5)]
    status = judge(ends, tmp_path)
    assert status.failure is not None
    assert status.failure.rank == 1


def test_a_rank_cut_off_after_it_wrote_its_error_keeps_its_own_exit_code(tmp_path: Path) -> None:
    write_error(tmp_path, 0, time=10.0, message="no room on the disk", exit_code=6)
    ends = [RankEnd(0, -9, 10.2, ended_by_launcher=True), RankEnd(1, 1, 10.3)]
    write_error(tmp_path, 1, time=10.1, message=PEER_GONE)
    status = judge(ends, tmp_path)
    assert status.failure is not None
    assert (status.failure.rank, status.failure.exit_code, status.exit_code) == (0, 6, 6)


def test_a_time_out_names_the_rank_that_never_arrived(tmp_path: Path) -> None:
    write_error(tmp_path, 0, time=10.0, message="Timed out waiting 60000ms for recv operation to complete")
    status = judge([RankEnd(0, 1, 10.0), RankEnd(1, -9, 20.0, ended_by_launcher=True)], tmp_path)
    assert status.failure is not None
    assert status.failure.rank == 0
    assert status.failure.error.endswith("see their logs: rank 1")


def test_half_an_error_file_is_no_error_file(tmp_path: Path) -> None:
    write_error(tmp_path, 0, time=1.0, message="x")
    path = tmp_path / "logs" / "rank-0.error.json"
    path.write_text(path.read_text()[:20])
    (tmp_path / "logs" / "rank-0.log").write_text("Traceback (most recent call last):\nKeyError: 'lr'\nbye\n")
    status = judge([RankEnd(0, 1, 1.0)], tmp_path)
    assert status.failure is not None
    assert status.failure.error == "KeyError: 'lr' (exit code 1)"


@pytest.mark.parametrize(("code", "of_job"), [(1, 5), (3, 3), (9, 9), (-9, 5), (137, 5), (255, 5), (75, 5)])
def test_only_documented_codes_leave_the_command(code: int, of_job: int) -> None:
    assert job_exit_code(code) == of_job


def test_signals_are_named() -> None:
    assert explain_exit(-11).startswith("ended by SIGSEGV (Segmentation fault")
    assert explain_exit(137) == explain_exit(-9)
    assert "KeyError: 1" in explain_exit(-6, "KeyError: 1")
    assert explain_exit(4) == "no error was written (exit code 4)"


def test_the_last_error_of_this_start_is_taken_from_the_log(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    assert last_error_line(log) == ""
    log.write_text("ValueError: old\n======== started again 2026-01-01 00:00:00 ========\nstep 1\n")
    assert last_error_line(log) == ""
    with log.open("a") as file:
        file.write("x" * 100_000 + "\ntorch.OutOfMemoryError: CUDA out of memory\n  at line 3\n")
    assert last_error_line(log) == "torch.OutOfMemoryError: CUDA out of memory"
