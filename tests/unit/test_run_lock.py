"""A run directory has one live job; a dead one's lock is no obstacle, and a reused pid is not taken for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from headway.errors import UserError
from headway.run.lock import (
    Holder,
    JobLock,
    clear_stop,
    is_alive,
    live_holder,
    read_holder,
    request_stop,
    stop_requested,
    this_process,
)
from headway.run.paths import RunDir


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


def write_holder(run: RunDir, holder: Holder) -> None:
    run.lock.write_text(json.dumps(asdict(holder)))


def test_the_lock_names_this_process_while_it_is_held(run: RunDir) -> None:
    with JobLock(run):
        holder = live_holder(run)
        assert holder is not None
        assert holder.pid == os.getpid()
        assert is_alive(holder) is True
    assert read_holder(run) is None
    with JobLock(run):
        pass


def test_another_live_process_is_named(run: RunDir) -> None:
    write_holder(run, _parent())
    with pytest.raises(UserError) as caught, JobLock(run):
        pytest.fail("entered a run that another process has")
    assert f"in use by process {os.getppid()} on" in str(caught.value)
    assert f"headway stop {run.name}" in str(caught.value)
    assert live_holder(run) == _parent()


def _parent() -> Holder:
    stat = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
    return replace(this_process(), pid=os.getppid(), started=stat[19], time=1.0)


@pytest.mark.parametrize(
    "change",
    [
        {"pid": 2**22 + 1},  # beyond the highest pid
        {"started": "1"},  # the pid lives, in another process
        {"boot": "before the last reboot"},
    ],
)
def test_a_dead_holder_s_lock_is_taken_over(run: RunDir, change: dict[str, object]) -> None:
    dead = replace(_parent(), **change)
    write_holder(run, dead)
    assert is_alive(dead) is False
    assert live_holder(run) is None
    with JobLock(run):
        assert read_holder(run) is not None


def test_a_process_that_ended_but_was_not_waited_for_is_dead(run: RunDir) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        stat = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        holder = replace(this_process(), pid=process.pid, started=stat[19])
        assert is_alive(holder) is True
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # ended, and left as a zombie
        assert is_alive(holder) is False
    finally:
        process.communicate()


def test_another_host_cannot_be_asked(run: RunDir) -> None:
    elsewhere = replace(_parent(), host="elsewhere")
    write_holder(run, elsewhere)
    assert is_alive(elsewhere) is None
    assert live_holder(run) == elsewhere
    with pytest.raises(UserError, match=r"on elsewhere since .*\n.*remove .*job\.lock"), JobLock(run):
        pass
    with JobLock(run, take_over=True):
        assert live_holder(run) != elsewhere


@pytest.mark.parametrize("content", ["", "{", '{"pid": 1}', "[]", "null"])
def test_a_torn_lock_file_is_no_holder(run: RunDir, content: str) -> None:
    run.lock.write_text(content)
    assert read_holder(run) is None
    with JobLock(run):
        pass


def test_letting_go_leaves_a_successor_s_lock(run: RunDir) -> None:
    with JobLock(run):
        write_holder(run, _parent())
    assert read_holder(run) == _parent()


def test_a_stop_is_asked_seen_and_forgotten(run: RunDir) -> None:
    assert stop_requested(run) is None
    clear_stop(run)
    request_stop(run, "headway stop")
    assert stop_requested(run) == "headway stop"
    run.stop_request.write_text("{")
    assert stop_requested(run) == "requested"
    clear_stop(run)
    assert stop_requested(run) is None
