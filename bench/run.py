"""Headway beside its peers on this machine: `make bench`, or `python bench/run.py --rounds 1 --steps 4` to see it work.

In every round each contender runs once, as a fresh command; the order moves on by one from round to round. What is
compared is the ratio within a round, so that a machine that speeds up or slows down does so for both.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import chats
import corpus
import machine
import report
import speeds
from children import CONTENDERS, LORA, PROCESSES, Contender, Failed, Record, free_port, run

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parent.parent / "docs" / "bench.md"
FULL_ROUNDS = 7


def main() -> int:
    options = _options()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    work = options.work.resolve()
    chosen = _chosen(options.only)
    corpus.prepare(work / "data")
    if any(c.scenario == LORA and not c.why_not() for c in chosen):
        chats.prepare(work / "data")
    result: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": machine.describe(),
        "versions": machine.versions(),
        "settings": {"rounds": options.rounds, "steps": options.steps, "skip": options.skip, "processes": PROCESSES},
        "data": json.loads((work / "data" / "facts.json").read_text()),
        "chats": _json_or_none(work / "data" / "chats.json"),
        "skipped": {c.name: c.why_not() for c in chosen if c.why_not()},
        "runs": [],
        "peaks": [],
        "tokenising": [],
        "help": [],
        "failures": [],
        "notes": [],
    }
    for name, why in result["skipped"].items():
        print(f"{name}: skipped, {why}")
    for number in range(1, options.rounds + 1):
        _round(result, number, [c for c in chosen if not c.why_not()], work, options)
        _save(result, options)
    print(report.markdown(result))
    if options.rounds >= FULL_ROUNDS and not options.only and not result["failures"]:
        report.put_into(PAGE, report.markdown(result))
    return 1 if result["failures"] else 0


def _json_or_none(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text()) if path.is_file() else None


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=FULL_ROUNDS)
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps of each run")
    parser.add_argument("--skip", type=int, default=4, help="steps before the measured ones")
    parser.add_argument("--only", default="", help="contenders or scenarios whose name holds one of these, by comma")
    parser.add_argument("--work", type=Path, default=Path(".headway/bench"), help="folder of the data, kept")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the tables")
    parser.add_argument("--no-races", action="store_true", help="leave out tokenising and --help")
    options = parser.parse_args()
    options.skip = max(1, min(options.skip, options.steps - 2))
    if options.steps < 3:
        parser.error("--steps must be at least 3")
    return options


def _chosen(only: str) -> list[Contender]:
    words = [word.strip() for word in only.split(",") if word.strip()]
    return [c for c in CONTENDERS if not words or any(word in f"{c.name} {c.scenario}" for word in words)]


def _round(
    result: dict[str, Any], number: int, contenders: list[Contender], work: Path, options: argparse.Namespace
) -> None:
    result["peaks"].append(machine.matmul_peak(PROCESSES, free_port()))
    print(f"round {number}: matmul peak {result['peaks'][-1] / 1e9:.0f} GFLOP/s", flush=True)
    shift = (number - 1) % max(1, len(contenders))
    with tempfile.TemporaryDirectory(dir=work) as folder:
        for contender in contenders[shift:] + contenders[:shift]:
            for record in _tried(result, contender, work / "data", Path(folder) / contender.name, options):
                row = {"round": number, **_row(record, options.skip)}
                result["runs"].append(row)
                result["notes"] += [f"round {number}: {record.note}"] if record.note else []
                print(
                    f"  {contender.title:34} {row['tokens_per_second']:7.0f} tokens/s {row['targets_per_second']:7.0f}"
                    f" useful  first step after {row['marks']['first step']:5.1f} s  loss {row['loss']:.3f}",
                    flush=True,
                )
        if not options.no_races:
            result["help"].append(speeds.help_seconds())
            result["tokenising"].append(speeds.tokenising(work / "data", Path(folder) / "race"))


def _tried(
    result: dict[str, Any], contender: Contender, data: Path, folder: Path, options: argparse.Namespace
) -> Iterator[Record]:
    """The contender's record, or none, with the failure noted, so that the others go on."""
    try:
        yield run(contender, data, folder, min(options.steps, contender.most_steps))
    except Failed as failure:
        result["failures"].append(str(failure))
        print(f"  {failure}", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _row(record: Record, skip: int) -> dict[str, Any]:
    skip = max(1, min(skip, len(record.steps) // 2))
    return {
        "contender": record.contender,
        "tokens_per_second": record.rate(skip, "tokens"),
        "targets_per_second": record.rate(skip, "targets"),
        "marks": record.marks,
        "overhead": record.overhead,
        "flops_per_token": record.flops_per_token,
        "loss": record.steps[-1].loss,
    }


def _save(result: dict[str, Any], options: argparse.Namespace) -> None:
    """After every round, so that a session that is cut short leaves what it measured."""
    options.results.mkdir(parents=True, exist_ok=True)
    part = "".join(f"-{word.strip()}" for word in options.only.split(",") if word.strip())  # never over a full session
    name = f"{result['date']}-{machine.slug(result['machine'])}{part}.json"
    (options.results / name).write_text(json.dumps(result, indent=1) + "\n")
    (options.results / f"latest{part}.md").write_text(report.markdown(result))


if __name__ == "__main__":
    sys.exit(main())
