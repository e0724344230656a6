"""`headway doctor`: what is wrong with this machine, these hosts, this script or this log, and the fix of each."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from headway.cli import tables

EXITS = "exit code: 0 nothing to say, 1 warnings only, 2 something must be fixed"
DESCRIPTION = f"""\
Look for what would fail, before a run. Alone: this machine. Each finding has its evidence and a fix to paste.
{EXITS}"""
EXAMPLE = (
    "headway doctor",
    "headway doctor --script train.py launch.sh Dockerfile",
    "headway doctor --log slurm-1234.out",
)


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--script",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="read training scripts, launch scripts, Dockerfiles (or a folder of them); nothing is run",
    )
    parser.add_argument(
        "--log",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="name the first failure in log files of any launcher (or a folder of them), its cause and fix",
    )
    parser.add_argument("--all", action="store_true", help="print also what was found to be in order")
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")


def run(options: Namespace) -> int:
    from headway import api

    if options.log:
        return _logs(options)
    report = api.doctor_scripts(options.script) if options.script else api.doctor()
    if options.json:
        tables.print_json(report.to_json() | {"exit_code": report.exit_code})
    else:
        tables.print_findings(report, every=options.all)
        sys.stdout.flush()
    return report.exit_code


def _logs(options: Namespace) -> int:
    """0: no line names an error; 2: one was found."""
    from headway import api

    found = api.diagnose_logs(options.log)
    if options.json:
        tables.print_json({"diagnosis": found.to_json() if found else None, "exit_code": 2 if found else 0})
    elif found is None:
        print("no line of these logs names an error")
    else:
        print(f"diagnosis: {found.name}")
        tables.print_diagnosis(found)
    return 2 if found else 0
