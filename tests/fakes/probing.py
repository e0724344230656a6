"""The planner's probe in this process, which has torch imported: a process of its own would import it for each answer.

That the process itself starts and answers is shown by the runs in tests/distributed that train a user's own module.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from headway.model import probe


def _run(command: Sequence[str], **_: Any) -> subprocess.CompletedProcess[str]:
    assert list(command[:3]) == [sys.executable, "-m", probe.__name__]
    out, err, path = io.StringIO(), io.StringIO(), list(sys.path)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = probe.main(list(command[3:]))
    finally:
        sys.path[:] = path  # a user's module is looked for in the folders that the probe was given
    return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())


IN_THIS_PROCESS = SimpleNamespace(run=_run, TimeoutExpired=subprocess.TimeoutExpired)  # in the place of `subprocess`
