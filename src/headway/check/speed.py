"""A matrix product on every GPU, in a process of its own: names a device that is slower than its neighbours."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Mapping

from headway.check.report import Verdict, green, red, yellow

_SECONDS = 15.0
_SLOW = 0.85  # of the median: devices of one model differ by a few per cent

_PROGRAM = """
import json, time, torch
found = {}
for index in range(torch.cuda.device_count()):
    a = torch.randn(4096, 4096, device=f"cuda:{index}", dtype=torch.float16)
    for _ in range(10):
        b = a @ a
    torch.cuda.synchronize(index)
    start = time.perf_counter()
    for _ in range(30):
        b = a @ a
    torch.cuda.synchronize(index)
    found[index] = 30 * 2 * 4096**3 / (time.perf_counter() - start) / 1e12
print(json.dumps(found))
"""


def matmul(name: str, environment: Mapping[str, str], program: str = _PROGRAM) -> Verdict:
    """TFLOP/s of each GPU in fp16."""
    command = [sys.executable, "-c", program]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False, env=dict(environment)
        )
    except subprocess.TimeoutExpired:
        return yellow(name, f"no answer within {_SECONDS:g} s", "nvidia-smi: is a GPU held by another process?")
    try:
        speeds = {int(index): float(speed) for index, speed in json.loads(done.stdout).items()}
    except ValueError:
        return red(name, "a matrix product on the GPUs failed", "nvidia-smi -q", evidence=done.stderr.strip()[-300:])
    return judge(name, speeds)


def judge(name: str, speeds: dict[int, float]) -> Verdict:
    """speeds: device -> TFLOP/s."""
    if not speeds:
        return green(name, "no GPU")
    told = ", ".join(f"GPU {index}: {speed:.0f}" for index, speed in speeds.items()) + " TFLOP/s"
    middle = statistics.median(speeds.values())
    slow = [index for index, speed in speeds.items() if speed < _SLOW * middle]
    if slow:
        what = f"GPU {', '.join(map(str, slow))} computes slower than the others: every step waits for it"
        rest = ",".join(str(index) for index in speeds if index not in slow)
        return yellow(name, what, f"export CUDA_VISIBLE_DEVICES={rest}; nvidia-smi -q -d PERFORMANCE", evidence=told)
    return green(name, "the GPUs compute alike", evidence=told)
