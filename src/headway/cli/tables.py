"""Plans, findings, runs and comparisons on stdout: in colour and wrapped on a terminal, as plain columns elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headway.cli.lines import aligned, check_lines, finding_lines, printable, writes_text
from headway.cli.seam import ExportResult, Report
from headway.run.journal import finite
from headway.units import format_bytes

if TYPE_CHECKING:
    from headway.config.schema import RunConfig
    from headway.diagnose.judge import Diagnosis
    from headway.plan.schema import Plan


def print_json(value: Any) -> None:
    """Indented JSON on stdout; paths as text, numbers that JSON does not have as strings."""
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(json.dumps(finite(value), indent=2, default=str, ensure_ascii=not unicode))


def print_title(title: str) -> None:
    """A heading, set apart from what stands above it."""
    print(f"\n\033[1m{title}\033[0m" if _colours() else f"\n{title}")


def print_pairs(rows: Sequence[Sequence[str]]) -> None:
    """(name, value) or (name, value, reason); on a terminal long values wrap."""
    if sys.stdout.isatty():
        from rich.console import Console

        from headway.cli.live import pairs

        Console(highlight=False).print(pairs(rows))
    else:
        print_lines(aligned(rows))


def print_lines(lines: Sequence[str]) -> None:
    for line in lines:
        print(f"  {line}")


def print_columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table; on a terminal that is too narrow the last columns are left out."""
    keep = len(header)
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        while keep > 2 and max(map(len, aligned([header[:keep], *(row[:keep] for row in rows)]))) > width:
            keep -= 1
    head, *body = aligned([header[:keep], *(row[:keep] for row in rows)])
    print(f"\033[2m{head}\033[0m" if _colours() else head)
    for line in body:
        print(line)


def _colours() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def print_next(commands: Sequence[str]) -> None:
    print_title("next")
    print_lines(commands)


def print_plan(plan: Plan, *, reasons: bool) -> None:
    """The plan's values, each with its reason; with `reasons` every value of it, not only the chief ones."""
    from headway.plan.explain import note_texts, reason_rows, summary_rows

    print(f"plan of {plan.name}")
    print_pairs([row for row in summary_rows(plan) if row[0] != "memory"])  # it has a section of its own
    if reasons:
        print_title("every reason")
        print_pairs(reason_rows(plan))
    for text in note_texts(plan):
        print(f"note: {text}")


def print_explained(plan: Plan, key: str, config: RunConfig) -> None:
    """The values at and below a key, each with its reason."""
    from headway.plan.explain import explain

    for name, value, why in explain(plan, key, config):
        print(f"{name} = {value}\n    {why}")


def print_checks(report: Report) -> None:
    print()
    for line in check_lines(report):
        print(line)


def print_findings(report: Report, *, every: bool) -> None:
    """The table of `headway doctor`. Not wrapped where the output is no terminal, so that a fix can be cut out."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 10_000
    for line in finding_lines(report, every=every, width=width):
        print(line)


def print_diagnosis(found: Diagnosis) -> None:
    """One failure: who, in whose words, why, and what to do."""
    who = "a rank that no line names" if found.rank is None else f"rank {found.rank}"
    who += f" on {found.host}" if found.host else ""
    rows = [("first", who), ("error", found.error), ("seen", found.where), ("cause", found.cause), ("fix", found.fix)]
    print_pairs([(name, printable(value)) for name, value in rows])


def print_export(result: ExportResult) -> None:
    for notice in result.notices:
        print(f"warning: {printable(notice)}")
    size = f", {format_bytes(result.bytes)}" if result.bytes else ""
    print(f"step {result.step} exported to {printable(result.path)}{size}")
    if result.verified:
        by = "" if result.max_difference is None else f"; the largest difference is {result.max_difference:.2g}"
        print(f"verified: {printable(result.compared)}{by}")
    if writes_text(result.path):
        print_next([f'headway generate {printable(result.path)} --prompt "..."'])
