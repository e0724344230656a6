"""Ranks forked from a server that has imported torch meet over gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.jobs import TESTS


@pytest.mark.distributed
def test_forked_ranks_reduce_over_gloo(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(TESTS / "fakes" / "fake_train.py"),
        str(tmp_path),
        "fakes.gloo_worker",
        "fork",
        "torch",
    ]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    done = subprocess.run(command, env=environment, check=False, timeout=120, capture_output=True, text=True)
    log = (tmp_path / "logs" / "rank-0.log").read_text()
    assert done.returncode == 0, log + done.stderr
    for rank in (0, 1):
        result = json.loads((tmp_path / f"rank-{rank}.result").read_text())
        assert result == {"sum": 3.0, "threads": 2, "imported_before": True, "accelerator": "cpu"}
