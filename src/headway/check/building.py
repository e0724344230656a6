"""`headway doctor --build-ops`: compile DeepSpeed's ops ahead of a run, in a process of its own, with progress."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from headway.check.report import Report, Verdict, green, red
from headway.units import format_seconds

_EVERY_SECONDS = 10.0
_SECONDS = 1800.0
_STEP = re.compile(r"^\[(\d+)/(\d+)\]")
_ERROR = re.compile(
    r"error[: ]|not found|No such file|CUDA_HOME|Ninja is required|\bException\b|\w+Error:", re.IGNORECASE
)

# Lists what there is, or loads one op, which compiles it unless it is in the cache.
_PROGRAM = """
import json, sys
from deepspeed.accelerator import get_accelerator
from deepspeed.ops.op_builder.all_ops import ALL_OPS
name = sys.argv[1]
if not name:
    usual = ["fused_adam", "cpu_adam"] if get_accelerator().device_name() == "cuda" else ["cpu_adam"]
    print("@" + json.dumps({"all": sorted(ALL_OPS), "usual": usual}))
else:
    ALL_OPS[name].load(verbose=True)
    print("@" + json.dumps({"built": name}))
"""


def build_ops(names: Sequence[str], progress: Callable[[str], None], environment: Mapping[str, str]) -> Report:
    """Compile these ops, or those that a run on this machine's devices may load where none is named."""
    asked = _run("", lambda text: None, environment)
    if asked.answer is None:
        why = _first_error(asked.lines)
        return Report((red("build-ops", "DeepSpeed's ops cannot be listed", "headway doctor says why", evidence=why),))
    known: list[str] = asked.answer["all"]
    verdicts: list[Verdict] = []
    for name in names or asked.answer["usual"]:
        if name not in known:
            verdicts.append(red(f"op-{name}", "DeepSpeed has no such op here", f"one of: {', '.join(known)}"))
            continue
        done = _run(name, lambda text, name=name: progress(f"{name}: {text}"), environment)
        took = format_seconds(done.seconds)
        if done.answer is not None:
            verdicts.append(green(f"op-{name}", f"ready after {took}"))
        else:
            fix = "headway doctor names what is missing; apt-get install g++; pip install ninja"
            verdicts.append(red(f"op-{name}", f"could not be built ({took})", fix, evidence=_first_error(done.lines)))
    return Report(tuple(verdicts))


class _Done:
    """A process that has ended: its answer (None: it failed), what it said, and how long it took."""

    def __init__(self, answer: dict[str, list[str]] | None, lines: list[str], seconds: float):
        self.answer, self.lines, self.seconds = answer, lines, seconds


def _run(name: str, progress: Callable[[str], None], environment: Mapping[str, str]) -> _Done:
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", _PROGRAM, name],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        env=dict(environment),
        start_new_session=True,  # its compilers end with it
    )
    began, lines = time.monotonic(), list[str]()
    reader = threading.Thread(target=_read, args=(process, lines), daemon=True)
    reader.start()
    try:
        while reader.is_alive() and time.monotonic() - began < _SECONDS:
            reader.join(_EVERY_SECONDS)
            if reader.is_alive():
                progress(f"{format_seconds(time.monotonic() - began)}, {_where(lines)}")
    finally:  # also on Ctrl-C
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        reader.join(1)
        if process.stdout is not None:
            process.stdout.close()
    answers = [json.loads(line[1:]) for line in lines if line.startswith("@")]
    return _Done(answers[-1] if answers else None, lines, time.monotonic() - began)


def _read(process: subprocess.Popen[str], lines: list[str]) -> None:
    lines.extend(line.rstrip() for line in process.stdout or ())  # grows line by line, read meanwhile by the other


def _where(lines: list[str]) -> str:
    """ninja's own count of what is done."""
    steps = [match for line in lines if (match := _STEP.match(line))]
    return f"compiled {steps[-1][1]} of {steps[-1][2]} parts" if steps else "compiling"


def _first_error(lines: list[str]) -> str:
    found = next((line for line in lines if _ERROR.search(line) and "Werror" not in line), "")
    return (found or (lines[-1] if lines else "no word"))[:300]
