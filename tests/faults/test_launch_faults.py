"""Ranks that crash, hang, are killed or lose the port; launchers that are interrupted or killed. No torch in these."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.fake_worker import running
from fakes.fork_server import stop_fork_server
from fakes.jobs import FAKE, TESTS, fake_job, notices, trace, wait_for
from headway.launch.local import LocalOptions, run_job, warm_up
from headway.launch.seam import JobStatus

pytestmark = pytest.mark.faults
METHODS = ["exec", "fork"]


@pytest.fixture(scope="module", autouse=True)
def own_server() -> Iterator[None]:
    """The bare server ends with this file: ranks of later tests would import everything anew, each of them."""
    stop_fork_server()
    yield
    stop_fork_server()


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> str:
    warm_up("cpu", preload=())  # one bare server for this file; without effect on exec
    return request.param


def options(method: str, **changes: Any) -> LocalOptions:
    return LocalOptions(worker_module=FAKE, method=method, **changes)  # pyright: ignore[reportArgumentType]


def run(run_dir: Path, behaviour: dict[int, list[str]], method: str, **changes: Any) -> JobStatus:
    return run_job(fake_job(run_dir, behaviour), lambda: None, options(method, **changes))


def first(status: JobStatus) -> tuple[int, int, str]:
    """(rank, exit code, error) of the failure."""
    assert status.state == "failed"
    assert status.failure is not None
    return status.failure.rank, status.failure.exit_code, status.failure.error


def test_ranks_that_end_well(tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have the environment of now, also where the server that forks them stands since before."""
    monkeypatch.setenv("EXTRA", str(tmp_path))
    ticks: list[float] = []
    job = fake_job(tmp_path, {0: ["sleep 0.3"], 1: ["print hello"]})
    status = run_job(job, lambda: ticks.append(time.monotonic()), options(method, tick_seconds=0.05))
    assert status == JobStatus("done", 0)
    assert len(ticks) > 1
    environment = trace(tmp_path, 1, "environment")
    assert environment["RANK"] == environment["LOCAL_RANK"] == "1"
    assert environment["WORLD_SIZE"] == environment["LOCAL_WORLD_SIZE"] == "2"
    assert environment["MASTER_PORT"] == trace(tmp_path, 0, "environment")["MASTER_PORT"]
    assert environment["DS_ACCELERATOR"] == "cpu"
    assert environment["HEADWAY_LAUNCHED"] == "1"
    assert environment["EXTRA"] == str(tmp_path)
    assert trace(tmp_path, 1, "argv") == [str(tmp_path)]


def test_output_reaches_the_ranks_own_log_at_the_descriptors(tmp_path: Path, method: str) -> None:
    run(tmp_path, {0: ["print zero"], 1: ["print one"]}, method)
    log = (tmp_path / "logs" / "rank-1.log").read_text()
    assert set(log.splitlines()) == {"python: one", "stdout: one", "stderr: one"}


def test_a_failing_rank_is_named_with_its_own_error_and_its_peers_end(tmp_path: Path, method: str) -> None:
    status = run(tmp_path, {0: ["echo 1"], 1: ["sleep 0.2", "fail no such file: corpus.txt"]}, method)
    assert first(status) == (1, 1, "RuntimeError: no such file: corpus.txt")
    assert status.exit_code == 5
    assert status.failure is not None
    assert "no such file" in status.failure.log.read_text()


def test_a_documented_exit_code_becomes_the_commands(tmp_path: Path, method: str) -> None:
    assert run(tmp_path, {0: ["code 9"], 1: ["code 9"]}, method).exit_code == 9


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV"])
def test_a_rank_ended_by_a_signal(tmp_path: Path, method: str, name: str) -> None:
    status = run(tmp_path, {0: ["echo 1"], 1: [f"signal {name}"]}, method)
    rank, code, error = first(status)
    assert (rank, code) == (1, -getattr(signal, name))
    assert name in error


def test_a_rank_that_leaves_without_a_word(tmp_path: Path, method: str) -> None:
    assert first(run(tmp_path, {0: ["wait"], 1: ["leave 3"]}, method)) == (1, 3, "no error was written (exit code 3)")


def test_an_uncaught_exception_is_read_from_the_log(tmp_path: Path, method: str) -> None:
    rank, code, error = first(run(tmp_path, {0: ["wait"], 1: ["raise lost the plot"]}, method))
    assert (rank, code) == (1, 1)
    assert error == "ValueError: lost the plot (exit code 1)"


def test_a_deaf_peer_is_killed_after_the_grace(tmp_path: Path, method: str) -> None:
    rank, _, _ = first(run(tmp_path, {0: ["hang"], 1: ["sleep 0.2", "fail x"]}, method, end_seconds=0.3))
    assert rank == 1
    assert trace(tmp_path, 0, "signals") == ["SIGTERM"]
    assert not running(trace(tmp_path, 0, "pid"))


def test_nothing_that_a_rank_started_outlives_the_job(tmp_path: Path, method: str) -> None:
    run(tmp_path, {0: ["child", "wait"], 1: ["child", "sleep 0.3", "signal SIGKILL"]}, method)
    for rank in (0, 1):
        wait_for(lambda rank=rank: not running(trace(tmp_path, rank, "child")), "a rank's child to end")


def test_a_tick_that_raises_leaves_no_rank_behind(tmp_path: Path, method: str) -> None:
    def tick() -> None:
        if (tmp_path / "rank-1.pid").exists():
            raise KeyError("the display broke")

    with pytest.raises(KeyError, match="the display broke"):
        run_job(fake_job(tmp_path, {0: ["wait"], 1: ["hang"]}), tick, options(method))
    assert not running(trace(tmp_path, 1, "pid"))


def test_a_port_lost_before_the_ranks_met_is_replaced(tmp_path: Path, method: str) -> None:
    status = run(tmp_path, {0: ["port 2"], 1: ["sleep 0.1"]}, method)
    assert status.state == "done"
    assert (tmp_path / "starts").read_text() == "3"
    assert len(notices(tmp_path)) == 2
    assert "starting them again" in notices(tmp_path)[0]


def test_a_port_lost_five_times_is_the_failure(tmp_path: Path) -> None:
    rank, _, error = first(run(tmp_path, {0: ["port 99"], 1: ["wait"]}, "exec", port_attempts=3))
    assert rank == 0
    assert "EADDRINUSE" in error
    assert (tmp_path / "starts").read_text() == "3"


def test_the_same_words_after_the_ranks_met_are_a_failure(tmp_path: Path) -> None:
    first(run(tmp_path, {0: ["group", "port 1"], 1: ["wait"]}, "exec"))
    assert (tmp_path / "starts").read_text() == "1"
    assert notices(tmp_path) == []


def test_a_fixed_port_that_is_busy_is_replaced_with_a_notice(tmp_path: Path, method: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        busy = server.getsockname()[1]
        status = run_job(fake_job(tmp_path, {0: [], 1: []}, port=busy), lambda: None, options(method))
    assert status.state == "done"
    assert trace(tmp_path, 0, "environment")["MASTER_PORT"] != str(busy)
    assert str(busy) in notices(tmp_path)[0]


class Command:
    """`fakes/fake_train.py` as a command in a terminal: it leads its own process group, like a shell's job."""

    def __init__(self, run_dir: Path, behaviour: dict[int, list[str]], method: str):
        fake_job(run_dir, behaviour)
        self.run_dir = run_dir
        (run_dir / "temporary").mkdir()
        script = TESTS / "fakes" / "fake_train.py"
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(run_dir), FAKE, method],
            env={**os.environ, "PYTHONPATH": str(TESTS), "TMPDIR": str(run_dir / "temporary")},
            start_new_session=True,
        )

    def pids(self) -> list[int]:
        """The ranks' pids, once both do what they should."""
        paths = [self.run_dir / f"rank-{rank}.pid" for rank in (0, 1)]
        wait_for(lambda: all(path.exists() for path in paths), "both ranks")
        return [trace(self.run_dir, rank, "pid") for rank in (0, 1)]

    def press(self, number: signal.Signals) -> None:
        """What a terminal does: the signal goes to the whole foreground process group."""
        os.killpg(self.process.pid, number)

    def status(self) -> dict[str, Any]:
        return json.loads((self.run_dir / "status.json").read_text())

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@pytest.fixture
def commands() -> Iterator[list[Command]]:
    started: list[Command] = []
    yield started
    for command in started:
        command.close()


def start(commands: list[Command], run_dir: Path, behaviour: dict[int, list[str]], method: str) -> Command:
    commands.append(Command(run_dir, behaviour, method))
    return commands[-1]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_reaches_the_ranks_once_and_waits_for_the_save(
    tmp_path: Path, commands: list[Command], method: str, number: signal.Signals
) -> None:
    command = start(commands, tmp_path, {0: ["wait"], 1: ["wait"]}, method)
    command.pids()
    command.press(number)
    assert command.process.wait(60) == 75
    assert command.status()["state"] == "stopped"
    for rank in (0, 1):
        assert trace(tmp_path, rank, "signals") == ["SIGTERM"]
        assert trace(tmp_path, rank, "saved") is True


def test_repeated_sigterm_does_not_cut_the_save_short(tmp_path: Path, commands: list[Command]) -> None:
    command = start(commands, tmp_path, {0: ["wait"], 1: ["wait"]}, "exec")
    command.pids()
    for _ in range(3):
        command.press(signal.SIGTERM)
        time.sleep(0.05)
    assert command.process.wait(60) == 75
    assert trace(tmp_path, 0, "signals") == ["SIGTERM"]


@pytest.mark.parametrize("method", METHODS)
def test_a_second_ctrl_c_ends_at_once(tmp_path: Path, commands: list[Command], method: str) -> None:
    command = start(commands, tmp_path, {0: ["hang"], 1: ["hang"]}, method)
    pids = command.pids()
    command.press(signal.SIGINT)
    wait_for((tmp_path / "rank-0.signals").exists, "the first request to arrive")
    time.sleep(0.4)  # longer than one request counts as the same
    command.press(signal.SIGINT)
    assert command.process.wait(60) == 5
    assert command.status()["state"] == "stopped"
    assert "ended at once, without saving" in command.status()["failure"]["error"]
    assert not any(map(running, pids))


@pytest.mark.parametrize("method", METHODS)
def test_no_orphans_when_the_launcher_is_killed(tmp_path: Path, commands: list[Command], method: str) -> None:
    command = start(commands, tmp_path, {0: ["child", "hang"], 1: ["hang"]}, method)
    wait_for((tmp_path / "rank-0.child").exists, "the rank's own process")
    parent = int(Path(f"/proc/{command.pids()[0]}/stat").read_text().rpartition(")")[2].split()[1])
    pids = {*command.pids(), trace(tmp_path, 0, "child"), parent}  # the parent of a forked rank is the server
    command.process.kill()
    wait_for(lambda: not any(map(running, pids)), "the ranks, their children and the fork server to end")
    assert list((tmp_path / "temporary").glob("headway-*")) == []


@pytest.mark.parametrize("method", METHODS)
def test_no_orphans_when_the_whole_terminal_is_killed(tmp_path: Path, commands: list[Command], method: str) -> None:
    command = start(commands, tmp_path, {0: ["hang"], 1: ["hang"]}, method)
    pids = command.pids()
    command.press(signal.SIGKILL)
    wait_for(lambda: not any(map(running, pids)), "the ranks to end")


@pytest.mark.parametrize(("grace_seconds", "saved"), [(10.0, True), (0.02, False)])
def test_lnc_17_the_grace_of_a_save_is_the_plans(tmp_path: Path, grace_seconds: float, saved: bool) -> None:
    """Asked to stop, each rank saves for 0.2 s. Given too little it is killed, and says what was lost."""
    job = fake_job(tmp_path, {0: ["wait"], 1: ["wait"]}, grace_seconds=grace_seconds)
    sent: list[bool] = []

    def stop_once_up() -> None:
        if not sent and all((tmp_path / f"rank-{rank}.pid").exists() for rank in (0, 1)):
            sent.append(True)
            os.kill(os.getpid(), signal.SIGTERM)

    status = run_job(job, stop_once_up, options("exec"))
    assert status.state == "stopped"
    assert (tmp_path / "rank-0.saved").exists() is saved
    assert status.exit_code == (75 if saved else 5)
    if not saved:
        assert status.failure is not None
        assert "without saving" in status.failure.error
    assert not any(running(trace(tmp_path, rank, "pid")) for rank in (0, 1))  # no orphan
