"""`headway plan` and `headway calibrate`: what they take and what they print."""

from __future__ import annotations

import shlex
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from headway.cli import deepspeed
from headway.errors import EXIT_OK, CheckFailed, UserError

if TYPE_CHECKING:
    from headway.api.outlooks import Inquiry

EXAMPLE = (
    "headway plan run.yaml",
    "headway plan run.yaml --on 8xH100-80GB --nodes 1..16 --html plan.html",
    "headway plan --model ./Llama-3.1-8B/config.json --on 2x8xA100-80GB train.length='10B tokens'",
    "headway plan run.yaml strategy=zero-3 --explain batch.micro_batch",
    "headway plan run.yaml --check-only",
)
DESCRIPTION = """\
Say what a run will do, need, take and cost, and what else could be done; starts nothing and needs no GPU.
Every figure follows from the model's config, the machine and the price table."""
CALIBRATE_EXAMPLE = ("headway calibrate", "headway calibrate --out my-cluster.yaml --name lab")
CALIBRATE_DESCRIPTION = """\
Measure this machine for about 20 seconds (matrix products, memory, links, disk, steps of the real engine) and write
a cluster file. `headway plan` uses it from then on in this folder; `--on FILE` uses it anywhere."""


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="RUN_FILE", nargs="?")
    known = "a model folder, a config.json or a known model's name (llama-3.1-8b), in place of a run file"
    parser.add_argument("--model", metavar="MODEL", help=known)
    parser.add_argument(
        "--on", metavar="MACHINE", help="8xH100-80GB, 4x8xA100-40GB, or a cluster file; default: this machine"
    )
    parser.add_argument("--nodes", metavar="1..16", help="scan numbers of hosts")
    parser.add_argument("--prices", type=Path, metavar="FILE", help="a price table in place of the shipped one")
    parser.add_argument("--host-memory", metavar="SIZE", help="of each host of --on, such as 2TiB")
    for name, what in (("tensor", "tensor"), ("pipeline", "pipeline"), ("context", "sequence"), ("expert", "expert")):
        parser.add_argument(f"--{name}", type=int, metavar="N", help=f"{what} parallel degree; advice only")
    parser.add_argument("--reasons", action="store_true", help="say of every value why it is so")
    parser.add_argument(
        "--explain", metavar="KEY", help="one value or section with its reason, such as batch.micro_batch"
    )
    parser.add_argument(
        "--check-only",
        action="store_true",
        help="print the checks alone; exit code 0: nothing to say, 1: warnings only, 2: something must be fixed",
    )
    deepspeed.effective_argument(parser)
    deepspeed.arguments(parser)
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one self-contained page")
    parser.add_argument(
        "--learn", nargs="+", metavar="RUN", help="correct the cluster file by what these runs measured"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")


def hosts_of(text: str) -> tuple[int, ...]:
    """'1..16' as every number up to 8, powers of two and both ends; '3,5' as written."""
    first, dots, last = text.partition("..")
    try:
        if not dots:
            found = tuple(sorted({int(part) for part in text.split(",")}))
        else:
            low, high = int(first), int(last)
            doubled = (1 << power for power in range(4, high.bit_length()))
            found = tuple(n for n in sorted({low, *range(1, 9), *doubled, high}) if low <= n <= high)
    except ValueError:
        found = ()
    if not found or found[0] < 1:
        raise UserError(f"--nodes {text!r} is no range of hosts", fix="such as --nodes 1..16, or --nodes 1,2,4")
    return found


def run(options: Namespace) -> int:
    """Print the plan; exit code 4 where a check is red or the machine cannot hold it."""
    from headway import api
    from headway.cli import outlook, tables

    if options.learn:
        return _learn(options)
    if options.check_only:
        return _check_only(options)
    if options.effective:
        return _effective(options)
    planned, found = api.look_ahead(_inquiry(options))
    plan, report = planned.plan, planned.report
    red = any(verdict.level == "red" for verdict in report.verdicts) or (found is not None and not found.forecast.fits)
    if options.html and found is not None:
        from headway.cli.page import page

        _write(options.html, page(found))
    if options.explain is not None:
        tables.print_explained(plan, options.explain, planned.loaded.config)
    elif options.json:
        from headway.plan.outlook import as_json

        shown = {"plan": plan.model_dump(mode="json"), "digest": plan.digest(), "checks": report.to_json()}
        tables.print_json(shown | {"outlook": as_json(found) if found else None})
    else:
        tables.print_plan(plan, reasons=options.reasons)
        if found is None:
            print(f"\n{plan.cluster.device_name} is in no table: `headway calibrate` measures what time and cost need")
        else:
            outlook.print_outlook(found)
        if report.verdicts:
            tables.print_checks(report)
        if options.html and found is not None:
            print(f"\nwrote {options.html}")
        if not red and report.verdicts:
            tables.print_next([shlex.join(["headway", "train", options.file, *options.overrides])])
    return CheckFailed.exit_code if red else EXIT_OK


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}", fix="name another file") from error


def _check_only(options: Namespace) -> int:
    from headway import api
    from headway.cli import tables

    if options.file is None or options.on:
        raise UserError("--check-only checks a run file on this machine", fix="headway plan run.yaml --check-only")
    report = api.plan(Path(options.file), options.overrides).report
    if options.json:
        tables.print_json(report.to_json() | {"exit_code": report.exit_code})
    else:
        tables.print_findings(report, every=True)
    return report.exit_code


def _effective(options: Namespace) -> int:
    """Every value in force, on this machine or on that of --on."""
    from headway import api

    if options.on:
        found = api.effective_of(api.look_ahead(_inquiry(options))[0])
    elif options.file is None:
        raise UserError("--effective is of a run file", fix="headway plan run.yaml --effective")
    else:
        found = api.effective(Path(options.file), options.overrides)
    deepspeed.print_effective(found, as_json=options.json)
    return EXIT_OK


def _inquiry(options: Namespace) -> Inquiry:
    from headway.api.outlooks import Inquiry
    from headway.plan.degrees import Asked
    from headway.units import parse_bytes

    if (options.file is None) == (options.model is None):
        what = "takes a run file or --model, not both" if options.file else "needs a run file, or --model PATH"
        raise UserError(f"headway plan {what}", fix="headway plan run.yaml, or headway plan --model ./config.json")
    try:
        memory = parse_bytes(options.host_memory) if options.host_memory else None
    except ValueError as error:
        raise UserError(f"--host-memory {options.host_memory!r}: {error}") from None
    return Inquiry(
        file=Path(options.file) if options.file else None,
        model=options.model,
        overrides=options.overrides,
        on=options.on,
        hosts=hosts_of(options.nodes) if options.nodes else (),
        prices=options.prices,
        host_memory_bytes=memory,
        asked=Asked(options.tensor, options.pipeline, options.context, options.expert),
    )


def _learn(options: Namespace) -> int:
    from headway import api
    from headway.cli import tables

    path, learned = api.learn(options.learn, Path(options.on) if options.on else None)
    if options.json:
        tables.print_json({"file": path, "learned": learned.model_dump(mode="json")})
        return EXIT_OK
    runs = f"{len(learned.runs)} run{'s' if len(learned.runs) != 1 else ''}"
    print(
        f"{path}: from {runs}, steps take {learned.step_time:.2f} x and memory {learned.memory:.2f} x what is planned"
    )
    print("`headway plan` counts with both from now on, for every strategy alike: one factor each, no matter which ran")
    return EXIT_OK


def calibrate_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: .headway/cluster.yaml")
    parser.add_argument("--name", default="", help="of the cluster; default: its device's")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: GPUs, if there are")
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")


def calibrate(options: Namespace) -> int:
    """Measure, write the cluster file, show the rates."""
    import sys
    import time

    from headway import api
    from headway.cli import outlook, tables

    if not options.json:
        print("measuring this machine; other work on it makes the figures wrong ...", file=sys.stderr, flush=True)
    before = time.monotonic()
    cluster, path = api.calibrate(options.out, device=options.device, name=options.name)
    if options.json:
        tables.print_json({"file": path, "cluster": cluster.model_dump(mode="json", exclude_none=True)})
        return EXIT_OK
    tables.print_pairs(outlook.rate_rows(cluster))
    print(f"\nwrote {path} in {time.monotonic() - before:.0f} s")
    tables.print_next(["headway plan run.yaml", f"headway plan run.yaml --on {path}"])
    return EXIT_OK
