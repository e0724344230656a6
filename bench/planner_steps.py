"""Step time on this machine: the planner's against steps that it was not calibrated on, taken in turns.

    python bench/planner_steps.py [--turns 3]

A turn is `headway calibrate`, and then steps of each of fifteen other settings in a job of two ranks of its own, as
`headway train` has it: with many engines in one process, what the C library keeps of one changes the time of another.
The medians of the turns are held against each other.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time

from headway.api.calibrating import calibrate, measure, setting_plan
from headway.config.schema import StrategyConfig
from headway.facts.cluster import probe_cluster
from headway.plan.calibrated import measured_times
from headway.plan.schema import Plan, StrategyPlan
from headway.plan.strategy import StrategyRequest, deepspeed
from headway.plan.work import request_of

# name; hidden, layers, ffn, vocabulary, sequence, micro batch, accumulation; strategy
OTHERS = (
    ("3 M", (192, 4, 512, 4000, 256, 4, 1), "single"),
    ("3 M, short", (192, 4, 512, 4000, 64, 8, 1), "single"),
    ("6 M, deep", (192, 12, 512, 4000, 128, 4, 1), "single"),
    ("10 M", (320, 6, 896, 8000, 256, 2, 1), "single"),
    ("17 M, wide", (512, 4, 1408, 8000, 128, 4, 1), "single"),
    ("9 M, long", (256, 6, 704, 8000, 1024, 1, 1), "single"),
    ("3 M, ddp", (192, 4, 512, 4000, 256, 4, 1), "ddp"),
    ("10 M, ddp", (320, 6, 896, 8000, 256, 2, 2), "ddp"),
    ("10 M, zero-2", (320, 6, 896, 8000, 256, 2, 1), "zero-2"),
    ("10 M, zero-3", (320, 6, 896, 8000, 256, 2, 1), "zero-3"),
    ("0.1 M, ddp", (64, 2, 128, 512, 32, 2, 1), "ddp"),
    ("0.1 M, zero-2", (64, 2, 128, 512, 32, 2, 1), "zero-2"),
    ("2 M, zero-3", (128, 4, 384, 2048, 64, 2, 1), "zero-3"),
    ("28 M, zero-2", (512, 6, 1408, 8000, 128, 2, 1), "zero-2"),
    ("28 M, zero-3", (512, 6, 1408, 8000, 128, 2, 1), "zero-3"),
)

_STEPS = 6  # turns of each


def main() -> int:
    options = _options()
    cluster = probe_cluster("cpu")
    plans = [_with(setting_plan(cluster, setting), strategy) for _, setting, strategy in OTHERS]
    load = os.getloadavg()[0]
    measured: list[list[float]] = [[] for _ in plans]
    planned: list[list[float]] = [[] for _ in plans]
    calibrations: list[float] = []
    for turn in range(options.turns):
        before = time.perf_counter()
        rates = calibrate("cpu").rates
        calibrations.append(time.perf_counter() - before)
        if rates is None:
            return 1
        for number in _from(turn * len(plans) // options.turns, len(plans)):
            step = measure([plans[number]], _STEPS)["steps"][0]
            measured[number].append(step["seconds"])
            planned[number].append(sum(item.seconds for item in measured_times(plans[number], rates)))
    errors: list[float] = []
    print("| step of | measured | planned | |\n|---|--:|--:|--:|")
    for (name, _, _), taken, wanted in zip(OTHERS, measured, planned, strict=True):
        seconds, ahead = statistics.median(taken), statistics.median(wanted)
        errors.append(abs(ahead / seconds - 1))
        print(f"| {name} | {seconds:.3f} s | {ahead:.3f} s | {ahead / seconds - 1:+.1%} |")
    print(
        f"\nmedian error {statistics.median(errors):.1%}, largest {max(errors):.1%}; "
        f"{sum(error <= 0.15 for error in errors)} of {len(errors)} within 15 %; {options.turns} turns, "
        f"calibrate {min(calibrations):.1f} to {max(calibrations):.1f} s; "
        f"load average {load:.1f} to {os.getloadavg()[0]:.1f}; {time.strftime('%Y-%m-%d')}"
    )
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Planned and measured step times on this machine.")
    parser.add_argument("--turns", type=int, default=3)
    return parser.parse_args()


def _from(first: int, count: int) -> list[int]:
    """All numbers below count, from the first on and round: no turn begins with the same setting."""
    return [(first + number) % count for number in range(count)]


def _with(plan: Plan, strategy: str) -> Plan:
    found = StrategyPlan(kind=strategy)
    if strategy.startswith("zero-"):
        request = StrategyRequest(StrategyConfig(), "auto", request_of(plan))
        found = deepspeed(request, int(strategy[-1]), offload_optimizer=False, offload_parameters=False)
    return plan.model_copy(update={"strategy": found})


if __name__ == "__main__":
    sys.exit(main())
