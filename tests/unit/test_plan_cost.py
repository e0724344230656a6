"""Checkpoint intervals and bills against the formulas' own optimum, and against hand-made sums."""

from __future__ import annotations

import math

import pytest

from headway.facts.hardware import find_device
from headway.facts.prices import Price, read_prices
from headway.plan.cost import CostRequest, Failures, best_interval_seconds, bills, wall_seconds

DAY = 86400.0
PRICE = Price(low=1.0, usual=2.0, high=4.0)


def request(**changes: object) -> CostRequest:
    values = {
        "compute_seconds": 10 * DAY,
        "time_band": 0.25,
        "devices": 8,
        "hosts": 1,
        "checkpoint_bytes": 100 * 10**9,
        "checkpoints_kept": 3,
        "save_seconds": 30.0,
        "interval_seconds": 1800.0,
    }
    return CostRequest(**{**values, **changes})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("between", "save"), [(30 * DAY, 10.0), (DAY, 60.0), (3600.0, 120.0), (600.0, 60.0)])
def test_the_interval_is_the_one_that_takes_least_time(between: float, save: float) -> None:
    failures = Failures(between, save, restart_seconds=300.0)
    best = best_interval_seconds(failures)
    work = 100 * best
    least = wall_seconds(work, best, failures)
    scanned = min(wall_seconds(work, best * 1.02**n, failures) for n in range(-100, 101))
    assert least <= scanned * 1.0005  # Daly's series is within 0.2 % of the optimum where save < 2 x between


def test_short_saves_give_youngs_interval() -> None:
    failures = Failures(seconds_between=1e9, save_seconds=1.0, restart_seconds=0.0)
    assert best_interval_seconds(failures) == pytest.approx(math.sqrt(2 * 1e9), rel=1e-4)


def test_saves_longer_than_the_time_between_failures() -> None:
    failures = Failures(seconds_between=10.0, save_seconds=30.0, restart_seconds=60.0)
    assert best_interval_seconds(failures) == 10.0
    assert wall_seconds(1e6, 1e5, failures) == math.inf


def test_a_run_without_failures_costs_its_hours() -> None:
    table = read_prices().model_copy(update={"device_hours_between_failures": 1e15})
    bill, _ = bills(request(interval_seconds=None), PRICE, table)
    assert bill.wall_seconds == pytest.approx(10 * DAY, rel=1e-3)
    assert bill.usual - bill.storage == pytest.approx(10 * 24 * 8 * 2.0, rel=1e-3)
    assert bill.low - bill.storage == pytest.approx(0.75 * 10 * 24 * 8 * 1.0, rel=1e-3)
    assert bill.high - bill.storage == pytest.approx(1.25 * 10 * 24 * 8 * 4.0, rel=1e-3)
    assert bill.storage == pytest.approx(300 * table.storage_gb_month * 240 / 730, rel=1e-3)


def test_the_spot_market_loses_more_and_saves_more_often() -> None:
    demand, spot = bills(request(), PRICE, read_prices())
    assert spot.interruptions > 10 * demand.interruptions
    assert spot.interval_seconds < demand.interval_seconds
    assert spot.wall_seconds > demand.wall_seconds
    assert demand.lost < demand.lost_as_planned
    often = bills(request(interval_seconds=spot.interval_seconds), PRICE, read_prices())[1]
    assert often.lost_as_planned == pytest.approx(often.lost)
    hopeless = bills(request(hosts=5000, devices=40_000), PRICE, read_prices())[1]
    assert hopeless.wall_seconds > 100 * 365 * DAY


def test_every_price_is_of_a_device_in_the_table() -> None:
    for name, price in read_prices().devices.items():
        device = find_device(name)
        assert device is not None, name
        assert read_prices().price_of(device.name) == price
        assert price.low <= price.usual <= price.high, name
    assert read_prices().price_of("Abacus") is None
