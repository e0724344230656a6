"""`--deepspeed-config`, `--world-size` and `plan --effective`: a DeepSpeed JSON judged, each value with its origin."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.cli.tables import print_json, print_lines, print_title

if TYPE_CHECKING:
    from headway.api.in_force import Effective


def arguments(parser: ArgumentParser) -> None:
    """Of `plan` and `train`."""
    parser.add_argument(
        "--deepspeed-config", metavar="JSON", help="train by this DeepSpeed JSON, in place of the file's strategy"
    )
    parser.add_argument(
        "--world-size", type=int, metavar="N", help="with so many processes, as launch.processes=N does"
    )


def effective_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--effective", action="store_true", help="print every value in force, and the file and line it comes from"
    )


def overrides_of(options: Namespace) -> list[str]:
    """The two options as overrides: so they are recorded, and hold at a resume."""
    found: list[str] = []
    if named := getattr(options, "deepspeed_config", None):
        section = {"kind": "deepspeed", "config": str(Path(named).absolute())}
        found.append(f"strategy={json.dumps(section)}")
    if (count := getattr(options, "world_size", None)) is not None:
        found += ["launch.gpus=null", f"launch.processes={count}"]
    return found


def print_effective(found: Effective, *, as_json: bool) -> None:
    """Every value in force with its origin: the run file's keys, then what DeepSpeed is given."""
    if as_json:
        print_json(found.to_json())
        return
    print_title("in force")
    print_lines(_aligned(found.run))
    if found.engine:
        print_title("what DeepSpeed is given")
        print_lines(_aligned(found.engine))
    for title, lines in (("auto", found.autos), ("to know", found.notices)):
        if lines:
            print_title(title)
            print_lines(lines)


def _aligned(rows: Any) -> list[str]:
    """key = value, and where it comes from, in columns."""
    texts = [(f"{row.key} = {_shown(row.value)}", row.origin) for row in rows]
    width = min(64, max(len(text) for text, _ in texts))
    return [f"{text.ljust(width)}  {origin}" for text, origin in texts]


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
