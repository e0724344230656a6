"""Steps, warm-up and the whole learning-rate table, against transformers' schedulers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers import get_cosine_with_min_lr_schedule_with_warmup, get_linear_schedule_with_warmup

from headway.config.schema import OptimizerConfig
from headway.errors import PlanError
from headway.plan.schedule import Pace, learning_rate, make_schedule, steps_of, table, warmup_of
from headway.plan.schema import SchedulePlan
from headway.units import Amount

PACE = Pace(sequence=128, global_sequences=10, train_windows=995)


def schedule(kind: Any, steps: int, warmup: int, minimum: float = 6e-5, peak: float = 6e-4) -> SchedulePlan:
    return SchedulePlan(kind=kind, steps=steps, tokens=1, peak_lr=peak, min_lr=minimum, warmup_steps=warmup)


def rates_of(make: Any, peak: float, count: int) -> list[float]:
    """The rates that a torch scheduler gives before update 0, 1, 2, ..."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
    scheduler = make(optimizer)
    rates: list[float] = []
    for _ in range(count):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (1, 1), (2, 0), (2, 1), (7, 0), (7, 3), (7, 7), (100, 3)])
def test_cosine_equals_transformers(steps: int, warmup: int) -> None:
    """Their scheduler counts from 0: our update s uses the rate that theirs has after s steps."""

    def make(optimizer: torch.optim.Optimizer) -> Any:
        return get_cosine_with_min_lr_schedule_with_warmup(optimizer, warmup, steps, min_lr=6e-5)

    expected = rates_of(make, 6e-4, steps + 1)[1:]
    got = table(schedule("cosine", steps, warmup))
    if warmup == steps:  # no step is left to decay in: theirs divides by one
        assert got[-1] == 6e-4
        expected, got = expected[:-1], got[:-1]
    assert got == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (10, 0), (100, 7)])
def test_linear_equals_transformers(steps: int, warmup: int) -> None:
    expected = rates_of(lambda o: get_linear_schedule_with_warmup(o, warmup, steps), 6e-4, steps + 1)[1:]
    assert table(schedule("linear", steps, warmup, minimum=0.0)) == pytest.approx(expected, rel=1e-12, abs=1e-18)


def test_corners_are_exact() -> None:
    plan = schedule("cosine", 1000, 10)
    assert learning_rate(plan, 1) == 6e-4 / 10
    assert learning_rate(plan, 10) == 6e-4
    assert learning_rate(plan, 1000) == 6e-5
    assert learning_rate(plan, 5000) == 6e-5
    assert learning_rate(schedule("constant", 1000, 10, 6e-4), 1000) == 6e-4
    middle = 10 + 990 // 2
    assert learning_rate(plan, middle) == pytest.approx((6e-4 + 6e-5) / 2)
    rates = table(plan)
    assert len(rates) == 1000
    assert rates[9:] == sorted(rates[9:], reverse=True)
    with pytest.raises(ValueError, match="count from 1"):
        learning_rate(plan, 0)


@pytest.mark.parametrize(
    ("length", "steps"),
    [
        (Amount(500, "steps"), 500),
        (Amount(12_800, "tokens"), 10),
        (Amount(12_801, "tokens"), 11),
        (Amount(100, "sequences"), 10),
        (Amount(101, "sequences"), 11),
        (Amount(1, "epochs"), 100),  # 995 windows
        (Amount(2, "epochs"), 199),
        (Amount(0.5, "epochs"), 50),
    ],
)
def test_steps_cover_the_length(length: Amount, steps: int) -> None:
    count, reason = steps_of(length, PACE)
    assert count == steps
    assert reason.startswith("train.length")


def test_what_is_no_length_is_refused() -> None:
    with pytest.raises(PlanError, match="whole number of steps"):
        steps_of(Amount(2.5, "steps"), PACE)
    with pytest.raises(PlanError, match="no window"):
        steps_of(Amount(2, "epochs"), Pace(128, 10, 0))


def test_an_epoch_of_data_that_is_not_built_is_estimated() -> None:
    assert "estimated" in steps_of(Amount(1, "epochs"), Pace(128, 10, 995, windows_estimated=True))[1]


@pytest.mark.parametrize(
    ("warmup", "steps", "expected"),
    [
        (Amount(0.01, "share"), 20_012, 200),
        (Amount(0.01, "share"), 20, 1),
        (Amount(0.0, "share"), 20, 0),
        (Amount(0.025, "share"), 100, 3),  # 2.5: half goes up
        (Amount(30, "steps"), 100, 30),
        (Amount(1281, "tokens"), 100, 2),
    ],
)
def test_warmup(warmup: Amount, steps: int, expected: int) -> None:
    assert warmup_of(warmup, steps, PACE)[0] == expected


def test_a_warmup_longer_than_the_run_is_refused() -> None:
    with pytest.raises(PlanError, match="30 steps of warm-up do not fit a run of 20 steps"):
        warmup_of(Amount(30, "steps"), 20, PACE)


def test_a_schedule_with_its_reasons() -> None:
    plan, reasons = make_schedule(OptimizerConfig(lr=1e-3, min_lr_ratio=0.1), Amount(300, "steps"), PACE)
    assert (plan.steps, plan.tokens, plan.warmup_steps) == (300, 300 * 1280, 3)
    assert math.isclose(plan.min_lr, 1e-4)
    assert reasons.keys() == {"schedule.steps", "schedule.tokens", "schedule.warmup_steps", "schedule.min_lr"}
    constant, _ = make_schedule(OptimizerConfig(lr=1e-3, schedule="constant"), Amount(300, "steps"), PACE)
    assert constant.min_lr == constant.peak_lr
