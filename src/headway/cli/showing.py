"""`headway show`: all runs, one run's story and logs, two runs side by side, a run while it runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.cli import tables
from headway.cli.account import account_rows
from headway.cli.lines import evaluated_rows, evaluation_text, event_lines, how_to_call, printable, writes_text
from headway.cli.state import number
from headway.errors import EXIT_OK, HeadwayError, UserError
from headway.run.evaluations import read_all
from headway.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from headway.cli.seam import Comparison
    from headway.plan.schema import Plan
    from headway.run.summary import RunSummary

_LAST_EVENTS = 8
_LAST_LINES = 30


def every(root: Path, *, as_json: bool) -> int:
    """The runs under `root`, the newest first."""
    from headway import api

    runs = list(reversed(api.runs(root)))
    if as_json:
        tables.print_json([asdict(run) for run in runs])
        return EXIT_OK
    if not runs:
        print(f"no runs in {root}")
        tables.print_next(["headway train run.yaml"])
        return EXIT_OK
    header = ("run", "state", "step", "loss", "held out", "tokens", "strategy", "started")
    tables.print_columns(header, [_row(run) for run in runs])
    return EXIT_OK


def _row(run: RunSummary) -> tuple[str, ...]:
    return (
        run.name,
        run.state,
        f"{run.step}/{run.steps}",
        _figure(number(run.last, "loss")),
        _figure(number(run.evaluation or {}, "loss")),
        format_count(run.tokens),
        run.strategy,
        _date(run.started),
    )


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _date(moment: float | None) -> str:
    return "" if moment is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))


def named(name: str | None, root: str) -> str:
    """The path of a run by its name under `root`, its path, or None for the newest there."""
    from headway import api

    return str(api.find_run(name, Path(root)))


# --- one run ---------------------------------------------------------------------------------------------------------


def one(name: str | None, *, as_json: bool) -> int:
    """What was planned, what happened, what stands."""
    from headway import api

    run = api.summary(name)
    if as_json:
        found = api.diagnose(run.path)
        tables.print_json(asdict(run) | {"diagnosis": found.to_json() if found else None})
        return EXIT_OK
    plan = _plan_of(run)
    print(f"{run.name}: {run.state}, step {run.step} of {run.steps}")
    tables.print_pairs(_facts(run))
    tables.print_title("planned and actual")
    tables.print_columns(("", "planned", "actual", ""), comparison(run, plan))
    if run.checkpoints:
        tables.print_title("checkpoints")
        rows = [
            (c.name, format_bytes(c.bytes), _date(c.time), "" if c.complete else "INCOMPLETE") for c in run.checkpoints
        ]
        tables.print_columns(("", "size", "saved", ""), rows)
    if evaluations := read_all(run.path):
        tables.print_title("evaluated")
        for found in evaluations:
            print(f"  {found.what}, {found.sha256[:16]}, {_date(found.time)}")
            tables.print_pairs(evaluated_rows(found))
    lines = [line for event in run.events if event.get("event") not in ("sample", "sample_data", "failed")
             for line in event_lines(event)]  # fmt: skip
    if lines:
        tables.print_title("last events")
        tables.print_lines(lines[-_LAST_EVENTS:])
    if run.failure:
        tables.print_title("failure")
        tables.print_lines(printable(run.failure).splitlines())
    if (found := api.diagnose(run.path)) is not None:
        tables.print_title(f"diagnosis: {found.name}")
        tables.print_diagnosis(found)
    tables.print_next(_next(run))
    return EXIT_OK


def _facts(run: RunSummary) -> list[tuple[str, str]]:
    seconds = (run.ended or time.time()) - run.started if run.started else None
    evaluation = f"{evaluation_text(run.evaluation)}  at step {run.evaluation.get('step')}" if run.evaluation else ""
    export = run.export or {}
    facts = [
        ("folder", str(run.path)),
        ("started", _date(run.started)),
        ("from start to end" if run.ended else "running for", format_seconds(seconds) if seconds is not None else ""),
        ("attempts", str(run.attempts) if run.attempts > 1 else ""),
        ("loss", _figure(number(run.last, "loss"))),
        ("held out", evaluation),
        ("model", f"{export.get('path')}{'' if export.get('verified') else ' (NOT VERIFIED)'}" if export else ""),
        ("tokens by source", _sources(run)),
        ("exit code", "" if run.exit_code is None else str(run.exit_code)),
    ]
    return [(name, value) for name, value in facts if value]


def _sources(run: RunSummary) -> str:
    """Tokens of each source up to the newest checkpoint, with their shares."""
    counted = [line for line in run.events if line.get("event") == "checkpoint" and line.get("sources")]
    if not counted:
        return ""
    tokens: dict[str, int] = counted[-1]["sources"]
    total = max(sum(tokens.values()), 1)
    parts = [f"{name}: {format_count(count)} ({count / total:.1%})" for name, count in tokens.items()]
    return f"{', '.join(parts)}  at step {counted[-1].get('step')}"


def _plan_of(run: RunSummary) -> Plan | None:
    """The run's plan; None where plan.json is damaged, which must not hide the rest."""
    from headway import api

    try:
        return api.plan_of(run.path)
    except HeadwayError as error:
        print(f"the plan cannot be read: {error}", file=sys.stderr)
        return None


def comparison(run: RunSummary, plan: Plan | None) -> list[tuple[str, str, str, str]]:
    """(figure, planned, actual, remark) of steps, tokens, learning rate and memory; the remark names a difference."""
    done = next((event for event in reversed(run.events) if event.get("event") == "done"), None)
    differences = [str(text) for text in (done or {}).get("differences", ())]
    most = "" if plan is None or plan.fills_windows else "at most "
    rows = [
        ("steps", str(run.steps), str(run.step), _remark("steps", differences)),
        (
            "tokens",
            f"{most}{format_count(run.tokens_planned)}",
            format_count(run.tokens),
            _remark("tokens", differences),
        ),
    ]
    lr = number(run.last, "lr")
    if plan is not None and lr is not None and 1 <= run.step <= plan.schedule.steps:
        from headway.plan.schedule import learning_rate

        planned = learning_rate(plan.schedule, run.step)
        remark = _remark("learning rate", differences) or ("" if planned == lr else "DIFFERS")
        rows.append((f"learning rate, step {run.step}", f"{planned:.6g}", f"{lr:.6g}", remark))
    if discarded := int(number(done or {}, "discarded") or 0):
        rows.append(("discarded steps", "0", str(discarded), "loss or gradients not finite"))
    if run.forecast and run.actual:
        return [*rows, *account_rows(run)]
    peak = number(run.last, "memory_peak_bytes")
    if plan is not None and peak is not None:
        from headway.plan.memory import used_bytes

        rows.append(
            ("memory, peak", format_bytes(used_bytes(plan.memory, plan.cluster)), format_bytes(peak), "estimated")
        )
    speed = number(run.last, "tokens_per_second")
    return [*rows, ("tokens/s", "", format_count(speed), "")] if speed is not None else rows


def _remark(name: str, differences: Sequence[str]) -> str:
    return "DIFFERS" if any(text.startswith(f"{name}:") for text in differences) else ""


def _next(run: RunSummary) -> list[str]:
    name = how_to_call(run.path)
    saved = any(checkpoint.complete for checkpoint in run.checkpoints)
    if run.state == "running":
        return [f"headway show {name} --follow", f"headway stop {name}"]
    if run.state == "done":
        if not run.export:
            return [f"headway export {name}"]
        return (
            [f'headway generate {name} --prompt "..."']
            if writes_text(run.path / "export")
            else [f"headway evaluate {name}"]
        )
    logs = [] if run.state == "stopped" else [f"headway show {name} --logs"]
    return [*logs, f"headway resume {name}" if saved else "headway train run.yaml"]


# --- logs, following, comparing --------------------------------------------------------------------------------------


def logs(name: str | None, rank: int | None) -> int:
    """Each rank's last lines, or all of one rank's."""
    from headway import api

    run = api.summary(name)
    if rank is not None:
        found = [log for log in run.logs if log.stem == f"rank-{rank}"]
        if not found:
            ranks = ", ".join(log.stem.removeprefix("rank-") for log in run.logs) or "none"
            raise UserError(f"{run.name} has no log of rank {rank}", fix=f"ranks with a log: {ranks}")
        _print_log(found[0], None)
        return EXIT_OK
    if not run.logs:
        print(f"{run.name} has no logs")
    for log in run.logs:
        tables.print_title(str(log))
        _print_log(log, _LAST_LINES)
    return EXIT_OK


def _print_log(log: Path, last: int | None) -> None:
    lines = log.read_text(encoding="utf-8", errors="backslashreplace").splitlines()
    for line in lines if last is None else lines[-last:]:
        print(printable(line))


def sync(name: str | None, *, as_json: bool) -> int:
    """Send the trackers what they do not hold."""
    from headway import api

    done = api.sync(name)
    if as_json:
        tables.print_json(done)
    else:
        tables.print_pairs(list(done.items()))
    return EXIT_OK


def follow(name: str | None, *, plain: bool | None) -> int:
    """The live display of a run that another command started; Ctrl-C leaves the display, not the run."""
    from headway import api
    from headway.cli.screen import make_screen

    run = api.summary(name)
    try:
        with make_screen(plain) as screen:
            screen.attach(api.plan_of(run.path))
            api.follow(str(run.path), screen)
    except KeyboardInterrupt:
        print(f"no longer following; {run.name} goes on")
        return EXIT_OK
    ended = api.summary(str(run.path))
    print(f"{ended.name}: {ended.state}, step {ended.step} of {ended.steps}")
    tables.print_next([f"headway show {how_to_call(ended.path)}"])
    return EXIT_OK


def compare(a: str, b: str, *, as_json: bool) -> int:
    """Plan values that differ, and the figures that came of them."""
    from headway import api

    found = api.compare(a, b)
    if as_json:
        tables.print_json(asdict(found))
        return EXIT_OK
    header = ("", found.a.name, found.b.name)
    rows = [(key, printable(left), printable(right)) for key, left, right in found.differences]
    print("planned differently" if rows else "planned alike")
    if rows:
        tables.print_columns(header, rows)
    tables.print_title("came out")
    tables.print_columns(header, [row for row in _figures(found) if any(row[1:])])
    return EXIT_OK


def _figures(found: Comparison) -> list[tuple[str, str, str]]:
    def both(name: str, value: Any) -> tuple[str, str, str]:
        return name, value(found.a), value(found.b)

    def took(run: RunSummary) -> str:
        return format_seconds(run.ended - run.started) if run.ended and run.started else ""

    def measured(source: str, key: str) -> Any:
        return lambda run: _figure(number(getattr(run, source) or {}, key))

    return [
        both("state", lambda run: run.state),
        both("steps", lambda run: f"{run.step}/{run.steps}"),
        both("tokens", lambda run: format_count(run.tokens)),
        both("loss", measured("last", "loss")),
        both("held-out loss", measured("evaluation", "loss")),
        both("best held-out loss", measured("best_evaluation", "loss")),
        both("perplexity", measured("evaluation", "perplexity")),
        both("bits per byte", measured("evaluation", "bits_per_byte")),
        both("tokens/s", lambda run: format_count(number(run.last, "tokens_per_second") or 0)),
        both("MFU", lambda run: f"{mfu:.1%}" if (mfu := number(run.last, "mfu")) is not None else ""),
        both("peak memory", lambda run: format_bytes(number(run.last, "memory_peak_bytes") or 0)),
        both("from start to end", took),
    ]
