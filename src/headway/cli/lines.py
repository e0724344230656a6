"""Events, figures and tables as plain lines of text: what both screens say, and all that a pipe or a log file gets."""

from __future__ import annotations

import shlex
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headway.cli.seam import Outcome, Record, Report
from headway.cli.state import Figure, number
from headway.run.paths import RunDir
from headway.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from headway.run.evaluations import Evaluation

_SHORT = {"grad norm": "grad", "waiting for data": "wait", "memory": "mem", "checkpoint": "ckpt"}


def printable(text: object) -> str:
    """Text that cannot move the cursor or set colours: control characters but tab and line end are written out."""
    return "".join(letter if _harmless(letter) else f"\\u{ord(letter):04x}" for letter in str(text))


def _harmless(letter: str) -> bool:
    return letter in "\n\t" or unicodedata.category(letter) not in ("Cc", "Cf", "Cs")


def block(title: str, text: object) -> list[str]:
    """A titled text, indented so that its lines cannot be taken for Headway's own."""
    return [title, *(f"  | {line}" for line in printable(text).expandtabs(4).split("\n"))]


def aligned(rows: Iterable[Sequence[str]], gap: str = "  ") -> list[str]:
    """Rows as columns, without trailing spaces; nothing is cut."""
    table = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[n]) for row in table if n < len(row)) for n in range(max(map(len, table), default=0))]
    return [gap.join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip() for row in table]


def step_line(step: int, steps: int, figures: Sequence[Figure]) -> str:
    """`step 120/5000  loss 3.412  grad 0.82  lr 0.0006 ...`"""
    parts = [f"step {step}/{steps}" if steps else f"step {step}"]
    parts += [f"{_SHORT.get(figure.name, figure.name)} {figure.value}" for figure in figures]
    return "  ".join(parts)


def event_lines(event: Record) -> list[str]:
    """What an event says to a person; [] for one that only changes the phase, or that is not known."""
    match event.get("event"):
        case "started" if event.get("resume"):
            return ["resuming"]
        case "resumed":
            return [f"resumed from {event.get('checkpoint')}: goes on after step {event.get('step')}"]
        case "first_step_compared" if event.get("skipped"):
            return [f"the first step was not compared with plain PyTorch: {event['skipped']}"]
        case "first_step_compared" if event.get("holds"):
            return ["the first step is the one that plain PyTorch computes"]
        case "evaluation":
            return [f"step {event.get('step')}  held out:  {evaluation_text(event)}"]
        case "checkpoint":
            size, took = number(event, "bytes") or 0, number(event, "seconds") or 0
            return [f"step {event.get('step')}  checkpoint saved: {format_bytes(size)} in {format_seconds(took)}"]
        case "export":
            return [_export(event)]
        case "sample_data":
            return block("one training sample, decoded:", event.get("text", ""))
        case "sample":
            return block("a continuation by the trained model:", f"{event.get('prompt', '')}{event.get('text', '')}")
        case "stopping":
            return [f"stopping: {printable(event.get('reason', ''))}"]
        case "failed":
            return [f"rank {event.get('rank')} failed: {printable(event.get('error', ''))}"]
        case "notice":
            return [f"note: {printable(event.get('text', ''))}"]
        case "warning":
            return [f"warning: {printable(event.get('text', ''))}"]
        case _:
            return []


def evaluation_text(event: Record) -> str:
    """`loss 3.212  perplexity 24.80  bits per byte 1.32  (gzip -9: 2.1)`, and whatever else the task measures."""
    parts: list[str] = []
    for key, name, digits in (
        ("loss", "loss", 4),
        ("perplexity", "perplexity", 4),
        ("bits_per_byte", "bits per byte", 3),
    ):
        value = number(event, key)
        parts += [f"{name} {value:#.{digits}g}".removesuffix(".")] if value is not None else []
    gzip = number(event, "gzip_bits_per_byte")
    parts += [f"(gzip -9: {gzip:.3g})"] if gzip is not None else []
    known = {"time", "event", "step", "seconds", "loss", "perplexity", "bits_per_byte", "gzip_bits_per_byte"}
    parts += [f"{key} {value:.4g}" for key in event if key not in known and (value := number(event, key)) is not None]
    return "  ".join(parts)


_ONE = {"logits": "logit", "losses": "loss"}


def _export(event: Record) -> str:
    path, difference = event.get("path"), number(event, "max_difference")
    if not event.get("verified"):
        return f"exported to {path}, but NOT VERIFIED" + (f": logits differ by {difference:.2g}" if difference else "")
    by, what = event.get("loader", "plain transformers"), event.get("compared", "logits")
    measured = f" (largest {_ONE.get(str(what), what)} difference {difference:.2g})" if difference is not None else ""
    return f"exported to {path}: {by} gives the same {what}{measured}"


def check_lines(report: Report) -> list[str]:
    """One line for all that is well; name, finding and fix for everything else, notes among it."""
    good = sum(verdict.level in ("green", "note") for verdict in report.verdicts)
    lines = [f"checks: {good} of {len(report.verdicts)} are green"]
    for verdict in report.verdicts:
        if verdict.level != "green":
            first, *more = verdict.finding.splitlines() or [""]
            lines.append(f"  {verdict.level}: {verdict.name}: {printable(first)}")
            lines += [f"    {printable(line)}" for line in more]
            lines += [f"    seen: {printable(verdict.evidence)}"] if verdict.evidence else []
            lines += [f"    fix: {printable(verdict.fix)}"] if verdict.fix else []
    return lines


_LEVELS = {"red": "MUST FIX", "yellow": "warning", "note": "note", "green": "ok"}


def finding_lines(report: Report, *, every: bool, width: int) -> list[str]:
    """The table of `headway doctor`: finding, evidence and fix, the worst first; with `every` what is in order too."""
    order = {"red": 0, "yellow": 1, "note": 2, "green": 3}
    lines: list[str] = []
    for verdict in sorted(report.verdicts, key=lambda verdict: order[verdict.level]):
        if verdict.level == "green" and not every:
            continue
        rows = [(_LEVELS[verdict.level], f"{verdict.name}: {printable(verdict.finding)}")]
        rows += [("  seen", printable(verdict.evidence))] if verdict.evidence else []
        rows += [("  fix", printable(verdict.fix))] if verdict.fix else []
        for title, text in rows:
            lines += _hanging(f"{title:<10}", text, width)
        lines += [""] if verdict.level != "green" else []
    count = {level: sum(verdict.level == level for verdict in report.verdicts) for level in order}
    good = count["note"] + count["green"]
    return [*lines, f"{count['red']} to fix, {count['yellow']} warnings, {good} in order"]


def _hanging(head: str, text: str, width: int) -> list[str]:
    """Wrapped beside its title; a fix or a path is never broken inside a word."""
    inner = max(30, width - len(head))
    wrapped = [
        part
        for line in text.split("\n")
        for part in textwrap.wrap(line, inner, break_long_words=False, break_on_hyphens=False) or [""]
    ]
    return [f"{head}{wrapped[0]}", *(f"{' ' * len(head)}{line}" for line in wrapped[1:])]


def how_to_call(run_dir: Path) -> str:
    """A run as an argument to type: its name where that is enough, else its path; quoted where need be."""
    return shlex.quote(run_dir.name if run_dir.parent == Path("runs") else str(run_dir))


_ENDINGS = {
    "done": "done",
    "stopped": "stopped and saved",
    "failed": "failed",
    "running": "still running",
    "new": "not started",
}


def headline(outcome: Outcome) -> str:
    """`done: 300 steps, 1.23M tokens in 3 min 20 s`"""
    tokens = f", {format_count(outcome.tokens)} tokens" if outcome.tokens else ""
    steps = f"{outcome.step} step{'' if outcome.step == 1 else 's'}"
    return f"{_ENDINGS[outcome.state]}: {steps}{tokens} in {format_seconds(outcome.seconds)}"


def evaluated_rows(found: Evaluation) -> list[tuple[str, str]]:
    """(held out or the task, its figures) of an evaluation that stands in a file."""
    rows = [("held out", evaluation_text(found.held_out))] if found.held_out else []
    for name, metrics in found.tasks.items():
        values = [f"{k} {v:.4g}" for k, v in metrics.items() if "stderr" not in k and k != "sample_len"]
        rows.append((name, "  ".join(values)))
    if found.settings.get("chat_template"):
        rows.append(("chat template", "applied in the tasks"))
    return rows


def where_things_are(outcome: Outcome) -> list[tuple[str, str]]:
    """(what, path) of everything that the run left."""
    run = RunDir(outcome.run_dir)
    places = [("run", run.path), ("metrics", run.metrics), ("logs", run.log_folder), ("checkpoints", run.checkpoints)]
    places += [("tensorboard", run.tensorboard), ("model", outcome.export or run.export)]
    return [(name, str(path)) for name, path in places if path.exists()]


def writes_text(export: Path) -> bool:
    """Whether `headway generate` reads this folder: not that of a module of the user's own, which loads itself."""
    return not (export / "load.py").is_file()


def what_next(outcome: Outcome) -> list[str]:
    """Commands to type now."""
    run = how_to_call(outcome.run_dir)
    saved = any(RunDir(outcome.run_dir).checkpoints.glob("step-*"))
    if outcome.state == "done" and outcome.export is not None:
        generate = [f'headway generate {run} --prompt "..."'] if writes_text(outcome.export) else []
        return [f"headway show {run}", *generate]
    if outcome.state == "done":
        return [f"headway show {run}", f"headway export {run}"]
    resume = [f"headway resume {run}"] if saved else []
    return resume if outcome.state == "stopped" else [f"headway show {run} --logs", *resume]
