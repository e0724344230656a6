"""Plan against actual, from a run's record: memory by item, step time, speed, cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headway.cli.state import number
from headway.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from headway.run.summary import RunSummary

Row = tuple[str, str, str, str]  # figure, planned, actual, remark
_HOUR = 3600


def account_rows(run: RunSummary) -> list[Row]:
    """(figure, planned, actual, remark); an item that nobody can measure by itself is left blank."""
    planned, actual = run.forecast, run.actual
    rows: list[Row] = []
    for name, key, show in (
        ("step time", "step_seconds", format_seconds),
        ("tokens/s", "tokens_per_second", format_count),
    ):
        promised, measured = number(planned, key), number(actual, key)
        if promised is not None and measured is not None:
            rows.append((name, show(promised), show(measured), apart(measured, promised)))
    promised, measured = number(planned, "device_bytes"), number(actual, "memory_peak_bytes")
    if promised and measured:
        kind = str(actual.get("memory_kind", ""))
        remark = f"{apart(measured, promised)}, {kind}"
        rows.append(("memory, peak", format_bytes(promised), format_bytes(measured), remark))
    rows += _items(planned.get("memory_items") or {}, actual.get("memory_items") or {})
    return [*rows, *_cost(run)]


def _items(planned: Mapping[str, Any], actual: Mapping[str, Any]) -> list[Row]:
    rows: list[Row] = []
    for name, sizes in planned.items():
        whole, live = sum(sizes.values()), sum((actual.get(name) or {}).values())
        shown = format_bytes(live) if name in actual else ""
        rows.append((f"  {name}", format_bytes(whole), shown, apart(live, whole) if live and whole else ""))
    return rows


def _cost(run: RunSummary) -> list[Row]:
    price, promised = number(run.forecast, "price_device_hour"), number(run.forecast, "cost")
    seconds, devices = number(run.actual, "wall_seconds"), number(run.actual, "processes")
    if price is None or promised is None or seconds is None or devices is None:
        return []
    currency = str(run.forecast.get("currency", ""))
    paid = seconds / _HOUR * devices * price
    return [("cost", f"{promised:.2f} {currency}", f"{paid:.2f} {currency}", apart(paid, promised) if promised else "")]


def apart(measured: float, planned: float) -> str:
    """'+3.1 %': what was measured, against the plan."""
    return f"{measured / planned - 1:+.1%}"
