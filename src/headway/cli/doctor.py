"""`headway doctor`: what is wrong with this machine, these hosts, this script or this log, and the fix of each."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from headway.cli import tables
from headway.errors import UserError

EXITS = "exit code: 0 nothing to say, 1 warnings only, 2 something must be fixed"
DESCRIPTION = f"""\
Look for what would fail, before a run. Alone: this machine. Each finding has its evidence and a fix to paste.
{EXITS}"""
EXAMPLE = (
    "headway doctor",
    "headway doctor --script train.py launch.sh Dockerfile",
)


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--script",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="read training scripts, launch scripts, Dockerfiles (or a folder of them); nothing is run",
    )
    parser.add_argument("--all", action="store_true", help="print also what was found to be in order")
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")


def run(options: Namespace) -> int:
    from headway import api

    if not options.script:
        raise UserError("name something to look at", fix="--script FILE...")
    report = api.doctor_scripts(options.script)
    if options.json:
        tables.print_json(report.to_json() | {"exit_code": report.exit_code})
    else:
        tables.print_findings(report, every=options.all)
        sys.stdout.flush()
    return report.exit_code
