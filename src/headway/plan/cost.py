"""What a run costs: device hours, storage, and what is lost to hosts that fail or are taken away.

Sources. The checkpoint interval: Young 1974, 'A first order approximation to the optimum checkpoint interval', and
Daly 2006, 'A higher order estimate of the optimum checkpoint interval for restart dumps', equations 20 (the time of a
run among failures) and 37 (the interval).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headway.facts.prices import Price, PriceTable

_HOUR = 3600.0
_MONTH_SECONDS = 730 * _HOUR  # a cloud's month
_GB = 1e9
# Failures so frequent that nothing is ever finished: exp() of more than this is no time at all.
_HOPELESS = 700.0


@dataclass(frozen=True)
class Failures:
    """How often the run is interrupted, and what each time costs. seconds_between: of the whole run, all its hosts."""

    seconds_between: float
    save_seconds: float  # training stands still while a checkpoint is written
    restart_seconds: float


def best_interval_seconds(failures: Failures) -> float:
    """Seconds of training between two checkpoints that cost the least time (Daly 2006, equation 37).

    For saves that are short against the time between failures it is Young's sqrt(2 x save x between) less the save.
    """
    save, between = failures.save_seconds, failures.seconds_between
    if save >= 2 * between:
        return between
    ratio = math.sqrt(save / (2 * between))
    return math.sqrt(2 * save * between) * (1 + ratio / 3 + ratio**2 / 9) - save


def wall_seconds(work_seconds: float, interval_seconds: float, failures: Failures) -> float:
    """Expected time of a run among failures that come at random (exponentially), with saves every interval.

    Daly 2006, equation 20: M e^(R/M) (e^((tau + delta)/M) - 1) T / tau. inf where it would never end.
    """
    between, tau = failures.seconds_between, min(interval_seconds, work_seconds) or 1.0
    once = (tau + failures.save_seconds) / between
    restart = failures.restart_seconds / between
    if once > _HOPELESS or restart > _HOPELESS:
        return math.inf
    return between * math.exp(restart) * math.expm1(once) * work_seconds / tau


@dataclass(frozen=True)
class CostRequest:
    """compute_seconds with its band (0.1 means 10 % either way); interval_seconds: what the plan saves at, if it does.

    save_seconds: how long training stands still for one checkpoint.
    """

    compute_seconds: float
    time_band: float
    devices: int
    hosts: int
    checkpoint_bytes: int
    checkpoints_kept: int
    save_seconds: float
    interval_seconds: float | None


@dataclass(frozen=True)
class Bill:
    """One way to pay for the run. Money is in the price table's currency.

    wall_seconds: with saves, failures and restarts, at the interval that makes it shortest. low, high: the cheapest
    and the dearest offer, at either end of the time's band. lost: what saves, failures and restarts cost, within
    `usual`. lost_as_planned: the same at the plan's own interval; inf where the run would hardly ever end.
    """

    market: str
    device_hour: float
    wall_seconds: float
    interval_seconds: float
    interruptions: float
    usual: float
    low: float
    high: float
    storage: float
    lost: float
    lost_as_planned: float


def bills(request: CostRequest, price: Price, table: PriceTable) -> tuple[Bill, Bill]:
    """(on demand, on the spot market)."""
    return _bill(request, price, table, spot=False), _bill(request, price, table, spot=True)


def failures_of(request: CostRequest, table: PriceTable, *, spot: bool) -> Failures:
    """Interruptions of the whole run: each device may fail, and on the spot market each host may be taken."""
    each_second = request.devices / (table.device_hours_between_failures * _HOUR)
    if spot:
        each_second += table.spot.preemptions_per_host_hour * request.hosts / _HOUR
    return Failures(1 / each_second, request.save_seconds, table.restart_minutes * 60)


def _bill(request: CostRequest, price: Price, table: PriceTable, *, spot: bool) -> Bill:
    failures = failures_of(request, table, spot=spot)
    interval = best_interval_seconds(failures)
    work, devices = request.compute_seconds, request.devices
    wall = wall_seconds(work, interval, failures)
    planned = request.interval_seconds or work  # saves at the end only: one interval
    as_planned = wall_seconds(work, planned, failures)
    share = table.spot.share_of_price if spot else 1.0
    stored = request.checkpoint_bytes * request.checkpoints_kept / _GB * table.storage_gb_month * wall / _MONTH_SECONDS

    def paid(seconds: float, rate: float) -> float:
        return seconds / _HOUR * devices * rate * share

    return Bill(
        market="spot" if spot else "on demand",
        device_hour=price.usual * share,
        wall_seconds=wall,
        interval_seconds=interval,
        interruptions=wall / failures.seconds_between,
        usual=paid(wall, price.usual) + stored,
        low=paid(wall * (1 - request.time_band), price.low) + stored,
        high=paid(wall * (1 + request.time_band), price.high) + stored,
        storage=stored,
        lost=paid(wall - work, price.usual),
        lost_as_planned=paid(as_planned - work, price.usual),
    )
