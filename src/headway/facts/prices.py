"""What devices cost: a dated file beside this module, which the user can replace."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from headway.errors import PlanError, Problem
from headway.facts.reading import read_facts
from headway.facts.schema import Facts

SHIPPED = Path(__file__).with_name("prices.yaml")


class Price(Facts):
    """US dollars (or the table's currency) of one device for an hour: the cheapest, the usual and the dearest offer.

    unchecked: written down from memory, not read off an offer.
    """

    low: float = Field(ge=0, allow_inf_nan=False)
    usual: float = Field(ge=0, allow_inf_nan=False)
    high: float = Field(ge=0, allow_inf_nan=False)
    source: str = ""
    unchecked: bool = False

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.low <= self.usual <= self.high:
            raise ValueError(f"must go up: low {self.low:g}, usual {self.usual:g}, high {self.high:g}")
        return self


class Spot(Facts):
    """Devices that may be taken away. preemptions_per_host_hour: how often one host is lost."""

    share_of_price: float = Field(gt=0, le=1)
    preemptions_per_host_hour: float = Field(ge=0)


class PriceTable(Facts):
    """A price file. storage_gb_month: a GB (10^9 bytes) for a month."""

    date: date
    currency: str = "USD"
    devices: dict[str, Price]
    storage_gb_month: float = Field(ge=0)
    spot: Spot
    device_hours_between_failures: float = Field(gt=0)
    restart_minutes: float = Field(ge=0)

    def price_of(self, device: str) -> Price | None:
        """The row of a device by the name that Headway gives it; None where the table has none."""
        wanted = _plain(device)
        return next((price for name, price in self.devices.items() if _plain(name) == wanted), None)


def read_prices(path: Path = SHIPPED) -> PriceTable:
    """The price file. Raises PlanError naming every wrong entry with its line, or that there is no such file."""
    if not path.is_file():
        fix = "copy the shipped table and change it, or leave --prices out"
        raise PlanError(problems=[Problem("--prices", "there is no such price file", str(path), f"{fix}: {SHIPPED}")])
    return read_facts(path, PriceTable)


def _plain(name: str) -> str:
    return name.lower().replace(" ", "-")
