"""How right the planner is on published measurements: `make planner-accuracy`, `make planner-accuracy TABLE=other.csv`.

    python bench/planner/accuracy.py             the own tables: prints, cross-validates, writes the page
    python bench/planner/accuracy.py OTHER.csv   any table with these columns: prints, refits nothing, writes nothing

Rows of quality C are not judged. What a row does not say is filled in from what its software does by default.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from rows import Row, judge, read_table
from scores import Confusion, Errors, Judged, choices, confusion, errors, grouped, judged

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("published.csv")
EXPLAINED = Path(__file__).with_name("explained.csv")
PAGE = ROOT / "docs" / "planner-accuracy.md"
WORST = 15


@dataclass(frozen=True)
class Later:
    """Rows gathered after the constants had been set, and what the planner said of them on the day that they came."""

    name: str  # at the head of its column
    table: Path
    before: Path

    @classmethod
    def of(cls, name: str, stem: str) -> Later:
        folder = Path(__file__).parent
        return cls(name, folder / f"{stem}.csv", folder / f"{stem}_before.csv")


# Each a section of the page, in the order in which they came.
LATER = (Later.of("held out", "held_out"), Later.of("later still", "later"))


def memory(row: Judged) -> float | None:
    return row.memory_error


def speed(row: Judged) -> float | None:
    return row.speed_error


def trusted(rows: Iterable[Row]) -> tuple[list[Row], int]:
    """(rows of quality A and B, or of none stated; how many others there are)."""
    kept = list(rows)
    good = [row for row in kept if row.get("quality", "").upper() not in ("C", "D")]
    return good, len(kept) - len(good)


def of(found: Errors | None) -> list[str]:
    """Number of rows, median, 90th percentile and bias as cells."""
    if found is None:
        return ["0", "", "", ""]
    return [str(found.count), f"{found.median:.1%}", f"{found.ninetieth:.1%}", f"{found.bias:+.1%}"]


def by_source(rows: list[Judged], key: Callable[[Judged], str]) -> list[list[str]]:
    lines: list[list[str]] = []
    for name, members in sorted(grouped(rows, key).items()):
        lines.append([name, *of(errors(members, memory)), *of(errors(members, speed))])
    return lines


def domains(rows: list[Judged]) -> list[tuple[str, list[Judged]]]:
    """Headway's own domain apart from the rest."""
    own = [row for row in rows if row.row.data_parallel]
    return [
        ("data parallel (tp = pp = 1)", own),
        ("tensor or pipeline parallel", [row for row in rows if not row.row.data_parallel]),
        ("all", rows),
    ]


HEAD = ["source", "memory rows", "median", "90th", "bias", "speed rows", "median", "90th", "bias"]


def summary(rows: list[Judged]) -> list[list[str]]:
    return [[name, *of(errors(members, memory)), *of(errors(members, speed))] for name, members in domains(rows)]


def confusions(rows: list[Judged]) -> list[list[str]]:
    return [[name, *_confused(confusion(members))] for name, members in domains(rows)]


def _confused(found: Confusion) -> list[str]:
    return [
        f"{found.missed} of {found.too_small}",
        f"{found.missed_share:.1%}",
        f"{found.false_alarms} of {found.enough}",
        f"{found.false_share:.1%}",
    ]


CONFUSION_HEAD = ["rows", "missed out-of-memory", "share", "false alarms", "share"]


def regrets(rows: list[Judged]) -> str:
    found = choices(rows)
    if not found:
        return "no model with several settings on one machine"
    ordered = sorted(choice.regret for choice in found)
    bad = sum(choice.picked.row.out_of_memory for choice in found)
    within = sum(regret <= 0.05 for regret in ordered)
    return (
        f"{len(found)} models with several settings on one machine: the pick is {ordered[len(ordered) // 2]:.1%} below "
        f"the best measured speed in the median, within 5 % in {within}, {ordered[-1]:.0%} at worst, "
        f"and out of memory in {bad}"
    )


def printed(head: list[str], lines: list[list[str]]) -> str:
    """Columns in line for a terminal."""
    cut = [[cell if len(cell) <= 64 else cell[:61] + "..." for cell in line] for line in [head, *lines]]
    widths = [max(len(line[column]) for line in cut) for column in range(len(head))]
    rows = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cut]
    return "\n".join([rows[0], "-" * len(rows[0]), *rows[1:]])


def markdown(head: list[str], lines: list[list[str]]) -> str:
    rule = ["---"] + ["--:"] * (len(head) - 1)
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, rule, *lines])


def worst(rows: list[Judged], kind: Callable[[Judged], float | None]) -> list[Judged]:
    measured = [row for row in rows if kind(row) is not None]
    return sorted(measured, key=lambda row: -abs(kind(row) or 0))[:WORST]


def report(rows: list[Judged], skipped: dict[str, int], total: int) -> str:
    """What the terminal shows."""
    parts = [
        printed(HEAD, by_source(rows, lambda row: row.row.source)),
        "",
        printed(["domain", *HEAD[1:]], summary(rows)),
        "",
        "device memory cut at 0.9 and 1.1 of each measured peak:",
        printed(CONFUSION_HEAD, confusions(rows)),
        "",
        f"regret: {regrets(rows)}",
        f"judged {len(rows)} of {total} rows",
        *(f"    {count} not judged: {why}" for why, count in sorted(skipped.items(), key=lambda item: -item[1])),
    ]
    return "\n".join(parts)


def load(path: Path) -> tuple[list[Judged], dict[str, int], int]:
    """(judged rows, reasons of the others, all rows)."""
    raw = read_table(path)
    good, doubtful = trusted(raw)
    kept, skipped = judge(good)
    if doubtful:
        skipped["quality C: doubtful"] = doubtful
    return [judged(row) for row in kept], skipped, len(raw)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make planner-accuracy", description=__doc__.split("\n")[0])
    parser.add_argument("table", nargs="?", type=Path, default=TABLE)
    parser.add_argument("--no-page", action="store_true", help="print only: no cross-validation, no page, no plots")
    asked = parser.parse_args(arguments)
    try:
        rows, skipped, total = load(asked.table)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        print(f"{asked.table} cannot be read: {error}", file=sys.stderr)
        return 2
    if not rows:
        print(f"no row of {asked.table} can be judged", *(f"    {n}: {why}" for why, n in skipped.items()), sep="\n")
        return 1
    print(report(rows, skipped, total))
    if asked.table != TABLE:
        return 0
    for later in LATER:
        print("", f"rows gathered after the constants had been set, {later.name}:", "", sep="\n")
        print(report(*load(later.table)))
    if not asked.no_page:
        from page import write_page

        write_page(PAGE, rows, skipped, total)
        print(f"written: {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
