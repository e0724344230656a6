"""`headway plan --html`: one page that holds all it needs; bars and a curve drawn as SVG, no script, no network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from headway.cli.outlook import duration, money
from headway.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from headway.plan.forecast import Forecast
    from headway.plan.outlook import Outlook

_DAY = 86400
_GIB = 1024**3
# Distinct also without colour vision (Okabe and Ito's palette), then greys.
_COLOURS = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#d55e00",
    "#f0e442",
    "#999999",
    "#666666",
    "#333333",
    "#8c510a",
    "#7b6fb0",
)
_WIDTH, _NAME, _SIZE, _ROW = 920, 285, 110, 30
_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #6a737d; --paper: #ffffff; --line: #d8dee4; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --soft: #8d96a0; --paper: #0d1117; --line: #30363d; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 960px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
.lead, .note { color: var(--soft); } svg { width: 100%; height: auto; } svg text { fill: var(--ink); font-size: 13px; }
svg text.soft { fill: var(--soft); } table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
.figures { display: flex; flex-wrap: wrap; gap: 1rem; margin-top: 1.2rem; }
.figures div { border: 1px solid var(--line); border-radius: .5rem; padding: .6rem 1rem; min-width: 8rem; }
.figures b { display: block; font-size: 1.25rem; }
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .35em 0 .9em; border-radius: 2px; }
.pair { white-space: nowrap; }
"""


def page(found: Outlook) -> str:
    """The whole page as text."""
    plan = found.plan
    machine = f"{plan.cluster.hosts} x {plan.cluster.devices_per_host} x {plan.cluster.device_name}"
    parts = [
        f"<h1>{escape(plan.name)}</h1>",
        f'<p class="lead">{escape(plan.shape.arch)}, {format_count(plan.shape.parameters)} parameters, on '
        f"{escape(machine)}; {format_count(plan.schedule.tokens)} tokens</p>",
        _figures(found),
        "<h2>Memory by strategy</h2>",
        _memory(found),
        "<h2>Where a step's time goes</h2>",
        _time(found.forecast),
        *(["<h2>Other numbers of hosts</h2>", _curve(found)] if found.scales else []),
        *(["<h2>Cost</h2>", _cost(found)] if found.bills else []),
        "<h2>The plan, and why</h2>",
        _reasons(found),
        *(f'<p class="note">assumed: {escape(text)}</p>' for text in found.assumed),
    ]
    head = f'<meta charset="utf-8"><title>{escape(plan.name)}: plan</title><style>{_STYLE}</style>'
    size = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    return f'<!doctype html><html lang="en"><head>{head}{size}</head><body>{"".join(parts)}</body></html>\n'


def _figures(found: Outlook) -> str:
    forecast = found.forecast
    figures = [
        (found.plan.strategy.label, "strategy"),
        (f"{forecast.device_bytes / _GIB:.1f} of {forecast.limit_bytes / _GIB:.1f} GiB", "memory of a device"),
        (format_count(forecast.tokens_per_second), "tokens/s"),
        (f"{forecast.mfu:.1%}" if forecast.mfu is not None else "unknown", "MFU"),
        (duration(found.days * _DAY), "the run"),
    ]
    figures += [(f"{money(bill.usual)} {found.currency}", bill.market) for bill in found.bills if bill.usual < 1e12]
    boxes = "".join(f"<div><b>{escape(value)}</b>{escape(name)}</div>" for value, name in figures)
    return f'<div class="figures">{boxes}</div>'


def _memory(found: Outlook) -> str:
    """One stacked bar a strategy, the limit as a line; what is beyond it is seen to be."""
    bars = [("planned: " + found.plan.strategy.label, found.forecast, "")]
    bars += [(candidate.family, candidate.forecast, candidate.reason) for candidate in found.candidates]
    names = list(dict.fromkeys(item.name for _, forecast, _ in bars for item in forecast.items if item.device_bytes))
    limit = found.forecast.limit_bytes
    # A strategy far beyond the device would flatten all others: its bar is cut at twice the limit.
    widest = min(2.0 * limit, max(max(forecast.device_bytes for _, forecast, _ in bars), limit * 1.05))
    scale = (_WIDTH - _NAME - _SIZE) / widest
    rows: list[str] = []
    for number, (label, forecast, reason) in enumerate(bars):
        top, left, room = 10 + number * _ROW, float(_NAME), widest * scale
        rows.append(f'<text x="0" y="{top + 14}">{escape(label)}</text>')
        for item in forecast.items:
            length = min(item.device_bytes * scale, _NAME + room - left)
            if length > 0.2:
                title = f"<title>{escape(item.name)}: {format_bytes(item.device_bytes)}</title>"
                colour = _colour(names.index(item.name))
                rows.append(f'<rect x="{left:.1f}" y="{top}" width="{length:.1f}" height="20" fill="{colour}">{title}')
                rows.append("</rect>")
                left += length
        text = ("no: " if reason else "") + f"{forecast.device_bytes / _GIB:.1f} GiB"
        rows.append(f'<text class="soft" x="{_WIDTH}" y="{top + 14}" text-anchor="end">{text}</text>')
    height = 10 + len(bars) * _ROW
    at = _NAME + limit * scale
    rows.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{height}" stroke="#d55e00" stroke-dasharray="4 3"/>')
    rows.append(f'<text class="soft" x="{at - 4:.1f}" y="{height + 14}" text-anchor="end">')
    rows.append(f"usable: {limit / _GIB:.1f} GiB</text>")
    reasons = [f"<li>{escape(label)}: {escape(reason)}</li>" for label, _, reason in bars if reason]
    listed = f'<ul class="note">{"".join(reasons)}</ul>' if reasons else ""
    caution = f"<p>{escape(found.caution)}</p>" if found.caution else ""
    return _svg(height + 20, rows) + _keys(names) + listed + caution + f'<p class="note">{escape(found.verdict)}</p>'


def _time(forecast: Forecast) -> str:
    """One bar of the exposed parts, and a table with what is hidden behind computation."""
    items = sorted(
        (item for item in forecast.times if item.seconds > 1e-5 * forecast.step_seconds), key=lambda item: -item.seconds
    )
    scale = _WIDTH / max(forecast.step_seconds, 1e-12)
    left, rows = 0.0, list[str]()
    for number, item in enumerate(items):
        length = item.seconds * scale
        title = f"<title>{escape(item.name)}: {format_seconds(item.seconds)}</title>"
        rows.append(
            f'<rect x="{left:.1f}" y="4" width="{length:.1f}" height="26" fill="{_colour(number)}">{title}</rect>'
        )
        left += length
    table = "".join(
        f'<tr><td><span class="key" style="background:{_colour(number)};margin-left:0"></span>{escape(item.name)}</td>'
        f"<td>{format_seconds(item.seconds)}</td><td>{item.seconds / forecast.step_seconds:.0%}</td>"
        f"<td>{format_seconds(item.hidden_seconds) + ' more, hidden' if item.hidden_seconds else ''}</td></tr>"
        for number, item in enumerate(items)
    )
    beside = "".join(
        f"<tr><td>beside the steps: {escape(each.name)}</td><td>{duration(each.seconds)}</td><td></td>"
        f"<td>{escape(each.words)}</td></tr>"
        for each in forecast.passes
    )
    whole = f"<tr><td>one step</td><td>{format_seconds(forecast.step_seconds)}</td><td></td><td></td></tr>"
    return _svg(36, rows) + f"<table>{table}{whole}{beside}</table>"


def _curve(found: Outlook) -> str:
    """Tokens a second against devices, with the straight line of perfect scaling, and the table behind it."""
    points = [(s.devices, s.forecast.tokens_per_second) for s in found.scales if s.forecast]
    drawn = _plot(points) if len(points) > 1 else ""
    rows = "".join(
        f"<tr><td>{s.hosts}</td><td>{s.devices}</td><td>{escape(s.label)}</td>"
        + (
            f"<td>{format_count(s.forecast.tokens_per_second)}</td><td>{s.efficiency:.0%}</td>"
            f"<td>{duration(s.days * _DAY)}</td><td>{money(s.cost) if s.cost is not None else ''}</td></tr>"
            if s.forecast
            else f'<td colspan="4">{escape(s.reason)}</td></tr>'
        )
        for s in found.scales
    )
    head = "".join(
        f"<th>{name}</th>"
        for name in ("hosts", "devices", "strategy", "tokens/s", "efficiency", "takes", f"cost, {found.currency}")
    )
    return f"{drawn}<table><tr>{head}</tr>{rows}</table>"


def _plot(points: Sequence[tuple[int, float]]) -> str:
    height, left, bottom = 300, 70, 260
    most_x, most_y = max(x for x, _ in points), max(y for _, y in points)
    ideal = points[0][1] / points[0][0]
    most_y = max(most_y, ideal * most_x)

    def at(x: float, y: float) -> str:
        return f"{left + x / most_x * (_WIDTH - left - 20):.1f},{bottom - y / most_y * (bottom - 15):.1f}"

    rows = [f'<line x1="{left}" y1="{bottom}" x2="{_WIDTH - 20}" y2="{bottom}" stroke="var(--line)"/>']
    step = 10 ** math.floor(math.log10(most_y)) / 2
    for count in range(int(most_y / step) + 1):
        y = at(0, count * step).split(",")[1]
        rows.append(f'<line x1="{left}" y1="{y}" x2="{_WIDTH - 20}" y2="{y}" stroke="var(--line)" stroke-width=".5"/>')
        rows.append(f'<text class="soft" x="{left - 6}" y="{float(y) + 4:.1f}" text-anchor="end">')
        rows.append(f"{format_count(count * step)}</text>")
    rows.append(f'<polyline points="{at(0, 0)} {at(most_x, ideal * most_x)}" fill="none" stroke="#999" ')
    rows.append('stroke-dasharray="4 3"/>')
    line = " ".join(at(x, y) for x, y in points)
    rows.append(f'<polyline points="{line}" fill="none" stroke="#0072b2" stroke-width="2.5"/>')
    for x, y in points:
        column, row = at(x, y).split(",")
        rows.append(f'<circle cx="{column}" cy="{row}" r="4" fill="#0072b2"/>')
        rows.append(f'<text class="soft" x="{column}" y="{bottom + 18}" text-anchor="middle">{x}</text>')
    rows.append(f'<text class="soft" x="{_WIDTH - 20}" y="{bottom + 36}" text-anchor="end">devices</text>')
    rows.append('<text class="soft" x="0" y="12">tokens/s; dashed: perfect scaling</text>')
    return _svg(height, rows)


def _cost(found: Outlook) -> str:
    rows = "".join(
        f"<tr><td>{bill.market}</td><td>{money(bill.usual)} {found.currency}</td>"
        f"<td>{money(bill.low)} .. {money(bill.high)}</td><td>{money(bill.lost)}</td>"
        f"<td>{duration(bill.wall_seconds)}</td><td>{duration(bill.interval_seconds)}</td></tr>"
        if bill.usual < 1e12
        else f'<tr><td>{bill.market}</td><td colspan="5">never ends: interrupted faster than it can go on</td></tr>'
        for bill in found.bills
    )
    names = ("", "total", "from .. to", "lost to saves and failures", "takes", "save every")
    head = "".join(f"<th>{name}</th>" for name in names)
    return f'<table><tr>{head}</tr>{rows}</table><p class="note">{escape(found.priced)}</p>'


def _reasons(found: Outlook) -> str:
    from headway.plan.explain import note_texts, summary_rows

    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(value)}</td><td>{escape(why)}</td></tr>"
        for name, value, why in summary_rows(found.plan)
    )
    notes = "".join(f'<p class="note">note: {escape(text)}</p>' for text in note_texts(found.plan))
    return f"<table>{rows}</table>" + notes


def _keys(names: Sequence[str]) -> str:
    keys = (
        f'<span class="pair"><span class="key" style="background:{_colour(number)}"></span>{escape(name)}</span> '
        for number, name in enumerate(names)
    )
    return f'<p class="note">{"".join(keys)}</p>'


def _svg(height: float, rows: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img">{"".join(rows)}</svg>'


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]
