"""Step time on this machine: the planner's against steps that it was not calibrated on, taken in turns with those.

    python bench/planner_steps.py

One job of two ranks has an engine for each of `headway calibrate`'s settings and for each of fifteen others, and makes
steps of each in turn, so that load from elsewhere falls on all alike. The rates are fitted to calibrate's own settings;
the medians of the others are held against what follows from them.
"""

from __future__ import annotations

import os
import statistics
import sys
import time

from headway.api.calibrating import cluster_file, measure, reference_plans, setting_plan
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


def main() -> int:
    cluster = probe_cluster("cpu")
    fitted = reference_plans(cluster)
    others = [_with(setting_plan(cluster, setting), strategy) for _, setting, strategy in OTHERS]
    load = os.getloadavg()[0]
    measured = measure(cluster, [*fitted, *others])
    rates = cluster_file(cluster, fitted, measured | {"steps": measured["steps"][: len(fitted)]}, "here").rates
    if rates is None:
        return 1
    errors: list[float] = []
    print("| step of | measured | planned | |\n|---|---|---|---|")
    for (name, _, _), plan, step in zip(OTHERS, others, measured["steps"][len(fitted) :], strict=True):
        planned = sum(item.seconds for item in measured_times(plan, rates))
        errors.append(abs(planned / step["seconds"] - 1))
        print(f"| {name} | {step['seconds']:.3f} s | {planned:.3f} s | {planned / step['seconds'] - 1:+.1%} |")
    turns = min(step["steps"] for step in measured["steps"])
    print(
        f"\nmedian error {statistics.median(errors):.1%}, largest {max(errors):.1%}; "
        f"{sum(error <= 0.15 for error in errors)} of {len(errors)} within 15 %; {turns} turns, "
        f"load average {load:.1f} to {os.getloadavg()[0]:.1f}; {time.strftime('%Y-%m-%d')}"
    )
    return 0


def _with(plan: Plan, strategy: str) -> Plan:
    found = StrategyPlan(kind=strategy)
    if strategy.startswith("zero-"):
        request = StrategyRequest(StrategyConfig(), "auto", request_of(plan))
        found = deepspeed(request, int(strategy[-1]), offload_optimizer=False, offload_parameters=False)
    return plan.model_copy(update={"strategy": found})


if __name__ == "__main__":
    sys.exit(main())
