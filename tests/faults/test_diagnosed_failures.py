"""From the logs of real failures of this machine to one diagnosis each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fakes.jobs import TESTS
from headway.diagnose.judge import diagnose_logs


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("real")
    command = [sys.executable, "-m", "fakes.real_failures", str(folder)]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize(
    ("kind", "name", "says"),
    [
        ("disk_full", "disk-full", "No space left on device"),
        ("disk_full_while_saving", "disk-full", "enforce fail at inline_container"),
        ("torn_checkpoint", "torn-checkpoint", "failed finding central directory"),
        ("torn_safetensors", "torn-checkpoint", "SafetensorError"),
        ("unsafe_pickle", "unsafe-pickle", "Weights only load failed"),
        ("unpicklable", "unsafe-pickle", "cannot pickle '_thread.lock' object"),
        ("size_mismatch", "size-mismatch", "size mismatch for weight"),
        ("token_out_of_range", "token-out-of-range", "index out of range in self"),
        ("label_out_of_range", "token-out-of-range", "Target 7 is out of bounds"),
        ("missing_module", "missing-module", "No module named 'not_installed_here'"),
        ("address_in_use", "address-in-use", "EADDRINUSE"),
        ("refused", "connection-refused", "client socket has timed out"),
        ("host_memory", "host-out-of-memory", "you tried to allocate 1125899906842624 bytes"),
        ("python_memory", "host-out-of-memory", "MemoryError"),
        ("kernel_build", "kernel-build", "Ninja is required"),
    ],
)
def test_real_failures(real: Path, kind: str, name: str, says: str) -> None:
    found = diagnose_logs([real / f"{kind}.log"])
    assert found is not None
    assert (found.name, says in found.error) == (name, True)
    assert "?" not in found.cause
    assert found.fix


def test_a_time_out_names_the_rank_that_did_not_come(real: Path) -> None:
    found = diagnose_logs([real / "timeout-rank-0.log", real / "timeout-rank-1.log"])
    assert found is not None
    assert (found.name, found.rank) == ("collective-timeout", 1)
    assert "rank 1 never came to it" in found.cause


def test_the_first_error_and_not_its_echo(real: Path) -> None:
    found = diagnose_logs([real / "echo-rank-0.log", real / "echo-rank-1.log"])
    assert found is not None
    assert (found.rank, found.error) == (1, "ValueError: row 17 of corpus.txt has no text")
    alone = diagnose_logs([real / "echo-rank-0.log"])
    assert alone is not None
    assert alone.name == "peer-lost"


def test_a_killed_process(tmp_path: Path) -> None:
    """bash's own words for a child that SIGKILL ended."""
    script = "bash -c 'kill -9 $$' ; echo after"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    (tmp_path / "job.log").write_text(done.stdout + done.stderr)
    found = diagnose_logs([tmp_path / "job.log"])
    assert found is not None
    assert found.name == "killed"
