"""What `headway plan` prints beside the plan: memory with bars, time, cost, alternatives, other machine sizes."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headway.cli import tables
from headway.cli.lines import aligned
from headway.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from headway.facts.clusterfile import ClusterFile
    from headway.plan.cost import Bill
    from headway.plan.outlook import Outlook
    from headway.plan.scaling import Scale

_BAR = 30
_SEEN = 1e-5  # of a step: what is less is no part of it
_DAY = 86400
_CENTURY_SECONDS = 100 * 365 * _DAY


def print_outlook(found: Outlook) -> None:
    """Every section in turn."""
    print_memory(found)
    print_time(found)
    print_cost(found)
    print_alternatives(found)
    print_scales(found)
    for text in found.assumed:
        print(f"assumed: {text}")


# --- memory ----------------------------------------------------------------------------------------------------------


def print_memory(found: Outlook) -> None:
    forecast, plan = found.forecast, found.plan
    on_cpu = plan.cluster.device == "cpu"
    tables.print_title("memory of one process" if on_cpu else "memory of one device")
    rows: list[tuple[str, float, str]] = []
    for item in forecast.items:
        size = item.device_bytes + (item.host_bytes if on_cpu else 0)
        if size:
            rows.append((item.name, size, format_bytes(size)))
    rows.append(("together", forecast.device_bytes, format_bytes(forecast.device_bytes)))
    _bars(rows, max(forecast.limit_bytes, forecast.device_bytes))
    band = f"{format_bytes(forecast.low_bytes)} to {format_bytes(forecast.high_bytes)}"
    verdict = "fits" if forecast.fits else f"DOES NOT FIT: {forecast.misfit}"
    print(f"  {verdict}: {format_bytes(forecast.limit_bytes)} can be used; nine in ten lie within {band}")
    if found.caution:
        print(f"  {found.caution}")
    storage = found.storage
    where = "measured" if storage.measured else "assumed"
    rate = f"{format_bytes(storage.disk_bytes_per_second)}/s a host, {where}"
    host = f"{format_bytes(forecast.host_bytes)} of {format_bytes(forecast.host_limit_bytes)}"
    details = [(item.name, item.host_bytes) for item in forecast.items if item.host_bytes]
    per = ", ".join(f"{name.replace('offloaded offload', 'offload')} {format_bytes(size)}" for name, size in details)
    print()
    tables.print_pairs([
        ("memory of a host", host, f"of each process: {per}" if per and not on_cpu else "all its processes"),
        ("NVMe", "none", "nothing is offloaded to a disk"),
        ("checkpoint", format_bytes(storage.checkpoint_bytes), "fp32 weights and the optimizer's moments"),
        ("saving one", format_seconds(storage.save_seconds), rate),
        ("disk for the run", format_bytes(storage.disk_bytes), f"{plan.checkpoint.keep} + 1 checkpoints, the export"),
    ])  # fmt: skip


def _bars(rows: Sequence[tuple[str, float, str]], whole: float) -> None:
    """Name, size and a bar of its share of `whole`; coloured blocks on a terminal, signs elsewhere."""
    if not sys.stdout.isatty():
        tables.print_lines(aligned([(name, text, "#" * _length(size, whole)) for name, size, text in rows]))
        return
    from rich.bar import Bar
    from rich.console import Console
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for name, size, text in rows:
        share = size / whole if whole else 0.0
        colour = "cyan" if name == "together" else "green"
        table.add_row(f"  {name}", text, Bar(1.0, 0.0, min(share, 1.0), width=_BAR, color=colour))
    Console(highlight=False).print(table)


def _length(size: float, whole: float) -> int:
    return max(1, round(_BAR * size / whole)) if size > 0 and whole > 0 else 0


# --- time and cost ---------------------------------------------------------------------------------------------------


def print_time(found: Outlook) -> None:
    forecast = found.forecast
    tables.print_title("time of one step")
    rows = [
        (item.name, item.seconds, _time_text(item.seconds, item.hidden_seconds))
        for item in sorted(forecast.times, key=lambda item: -item.seconds)
        if item.seconds + item.hidden_seconds > _SEEN * forecast.step_seconds
    ]
    _bars([*rows, ("together", forecast.step_seconds, format_seconds(forecast.step_seconds))], forecast.step_seconds)
    band = forecast.time_band
    share = f"give or take {band:.0%}" if band < 1 else "a guess: this machine was not measured"
    peak = "of the peak, or of the best matrix product where that was measured"
    mfu = [("MFU", f"{forecast.mfu:.1%}", peak)] if forecast.mfu is not None else []
    beside = " and these passes" if forecast.passes else ""
    print()
    tables.print_pairs([
        ("tokens/s", format_count(forecast.tokens_per_second), share),
        *mfu,
        *((each.name, duration(each.seconds), each.words) for each in forecast.passes),
        ("the run", duration(found.days * _DAY), f"{found.plan.schedule.steps} steps{beside}, no saves and failures"),
    ])  # fmt: skip


def _time_text(seconds: float, hidden: float) -> str:
    return format_seconds(seconds) + (f" (+ {format_seconds(hidden)} hidden)" if hidden else "")


def duration(seconds: float) -> str:
    if not math.isfinite(seconds) or seconds > _CENTURY_SECONDS:
        return "never"
    return format_seconds(seconds)


def print_cost(found: Outlook) -> None:
    tables.print_title("cost")
    if not found.bills:
        print(f"  {found.priced}")
        return
    header = ("", "total", "from .. to", "lost", "takes", "save every", "interruptions")
    tables.print_columns([f"  {header[0]}", *header[1:]], [_bill_row(bill, found.currency) for bill in found.bills])
    bill = found.bills[0]
    print(f"  prices: {bill.device_hour:.2f} {found.currency} a device and hour; {found.priced}")
    print(f"  storage of checkpoints, within the total: {bill.storage:.2f} {found.currency}")
    print("  `save every` costs the least time (Daly 2006); `lost` are saves, failures, preemptions and restarts at it")
    for bill in found.bills:
        more = bill.lost_as_planned - bill.lost
        ends = bill.wall_seconds < _CENTURY_SECONDS
        if ends and bill.lost_as_planned > bill.lost + max(1.0, 0.01 * bill.usual):
            what = f"{money(more)} {found.currency} more" if more < 1e12 else "without end"
            print(f"  {bill.market}: at the plan's own interval it would be {what}")


def _bill_row(bill: Bill, currency: str) -> tuple[str, ...]:
    if not math.isfinite(bill.wall_seconds) or bill.wall_seconds > _CENTURY_SECONDS:
        return (f"  {bill.market}", "never ends", "", "", "", "", "interrupted faster than it can go on")
    return (
        f"  {bill.market}",
        f"{money(bill.usual)} {currency}",
        f"{money(bill.low)} .. {money(bill.high)}",
        money(bill.lost),
        duration(bill.wall_seconds),
        duration(bill.interval_seconds),
        f"{bill.interruptions:.3g}",
    )


def money(value: float) -> str:
    return f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.0f}"


# --- alternatives and scaling ----------------------------------------------------------------------------------------


def print_alternatives(found: Outlook) -> None:
    tables.print_title("alternatives")
    rows: list[tuple[str, str]] = []
    for candidate in found.candidates:
        if candidate.fits:
            forecast = candidate.forecast
            size = f"{forecast.device_bytes / 2**30:.1f} of {forecast.limit_bytes / 2**30:.1f} GiB"
            speed = f"{format_count(forecast.tokens_per_second)} tokens/s"
            rows.append((candidate.family, f"{speed}; {size}; {candidate.label}"))
        else:
            rows.append((candidate.family, f"no: {candidate.reason}"))
    tables.print_pairs(rows)
    print(f"  {found.verdict}")
    if found.advice is not None:
        speed = format_count(found.advice.forecast.tokens_per_second)
        size = f"{found.advice.forecast.device_bytes / 2**30:.1f} GiB"
        print(f"  advice, not in this engine: {found.advice.label}: {speed} tokens/s; {size}")


def print_scales(found: Outlook) -> None:
    if not found.scales:
        return
    tables.print_title("on other numbers of hosts")
    header = ("hosts", "devices", "strategy", "tokens/s", "efficiency", "takes", "cost")
    tables.print_columns([f"  {header[0]}", *header[1:]], [_scale_row(scale, found.currency) for scale in found.scales])
    least = found.smallest
    if least is not None and least.forecast is not None:
        size = f"{least.forecast.device_bytes / 2**30:.1f} GiB"
        print(f"  the smallest that fits: {least.devices} x {found.plan.cluster.device_name} ({least.label}, {size})")
    elif least is None:
        print("  it fits on no number of such devices that was tried")
    print_next_host(found)


def print_next_host(found: Outlook) -> None:
    """What one more host buys: of the scan, or of the two sizes that are always looked at."""
    hosts = found.plan.cluster.hosts
    by_hosts = {scale.hosts: scale for scale in found.scales if scale.forecast}
    now, more = by_hosts.get(hosts), by_hosts.get(hosts + 1)
    if now is None or more is None or now.forecast is None or more.forecast is None:
        return
    gain = more.forecast.tokens_per_second / now.forecast.tokens_per_second - 1
    line = f"  one more host: {gain:+.0%} tokens/s, {duration(abs(now.days - more.days) * _DAY)} "
    line += "sooner" if more.days < now.days else "later"
    if now.cost is not None and more.cost is not None:
        line += f", {money(abs(more.cost - now.cost))} {found.currency} {'more' if more.cost > now.cost else 'less'}"
    print(line)


def _scale_row(scale: Scale, currency: str) -> tuple[str, ...]:
    head = (f"  {scale.hosts}", str(scale.devices))
    if scale.forecast is None:
        return (*head, f"no: {scale.reason}")
    cost = f"{money(scale.cost)} {currency}" if scale.cost is not None else ""
    rate = format_count(scale.forecast.tokens_per_second)
    return (*head, scale.label, rate, f"{scale.efficiency:.0%}", duration(scale.days * _DAY), cost)


# --- calibrate -------------------------------------------------------------------------------------------------------


def rate_rows(cluster: ClusterFile) -> list[tuple[str, str, str]]:
    """The measured rates for people."""
    rates = cluster.rates
    if rates is None:
        return []

    def flops(rate: float | None) -> str:
        return f"{rate / 1e9:.3g} GFLOP/s" if rate and rate < 1e12 else f"{rate / 1e12:.3g} TFLOP/s" if rate else "none"

    def moved(rate: float | None) -> str:
        return f"{format_bytes(rate)}/s" if rate else "none"

    update = rates.update_parameters_per_second
    updated = f"{format_count(update)} parameters/s" if update else "not seen"
    device = f"{cluster.hosts} x {cluster.devices_per_host} x {cluster.device_name}"
    return [
        ("machine", device, cluster.measured),
        ("matrix product", flops(rates.matmul_flops), f"{rates.precision}, large, all devices at once, each"),
        ("in a training step", flops(rates.layer_flops), "of the real engine's matrix products"),
        ("activations", moved(rates.stream_bytes_per_second), "kept bytes that a step makes and reads"),
        ("optimizer", updated, "AdamW; where it is seen beside the rest"),
        ("a layer's overhead", format_seconds(rates.layer_seconds), "forward and backward"),
        ("a step's own", format_seconds(rates.step_seconds), "whatever the model's size"),
        ("memory copy", moved(rates.copy_bytes_per_second), "read and written"),
        ("link", moved(rates.link_bytes_per_second), f"all-reduce, {format_seconds(rates.link_seconds)} at least"),
        ("host to device", moved(rates.host_bytes_per_second), "pinned"),
        ("disk", moved(rates.disk_bytes_per_second), "written and synced"),
    ]
