"""`headway doctor`: what is wrong with this machine, these hosts, this script or this log, and the fix of each."""

from __future__ import annotations

import shlex
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from headway.cli import tables
from headway.errors import Problem, UserError

if TYPE_CHECKING:
    from headway.check.hosts import HostsRequest

EXITS = "exit code: 0 nothing to say, 1 warnings only, 2 something must be fixed"
DESCRIPTION = f"""\
Look for what would fail, before a run. Alone: this machine. Each finding has its evidence and a fix to paste.
{EXITS}"""
EXAMPLE = (
    "headway doctor",
    "headway doctor --hostfile hosts --all-reduce --data corpus",
    "headway doctor --script train.py launch.sh Dockerfile",
    "headway doctor --log slurm-1234.out",
    "headway doctor --build-ops deepspeed_shm_comm",
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
    parser.add_argument(
        "--build-ops",
        nargs="*",
        metavar="NAME",
        help="compile DeepSpeed's ops ahead of a run (none named: those that a run here may load); minutes, once",
    )
    hosts = parser.add_argument_group("several hosts, by ssh")
    hosts.add_argument("--hostfile", type=Path, metavar="FILE", help="a line for each host: [user@]name[:port] slots=N")
    hosts.add_argument(
        "--hosts", metavar="NAMES", help="names in place of a file, as Slurm writes them: node[1-4],gpu7"
    )
    hosts.add_argument("--port", type=int, default=29500, metavar="N", help="tried between all hosts; default: 29500")
    hosts.add_argument("--code", nargs="+", default=(), metavar="PATH", help="must hold the same on every host")
    hosts.add_argument("--data", nargs="+", default=(), metavar="PATH", help="must hold the same on every host")
    hosts.add_argument("--ssh", default="", metavar="OPTIONS", help="options for ssh, such as '-F my_config'")
    hosts.add_argument("--all-reduce", action="store_true", help="measure a short all-reduce over the hosts as well")
    hosts.add_argument(
        "--floor", type=float, default=1.0, metavar="GBIT", help="least Gbit/s of the all-reduce; default: 1"
    )
    parser.add_argument("--all", action="store_true", help="print also what was found to be in order")
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")


def run(options: Namespace) -> int:
    from headway import api

    _require_one_place(options)
    if options.log:
        return _logs(options)
    if options.build_ops is not None:
        report = api.build_ops(options.build_ops, lambda text: print(text, file=sys.stderr, flush=True))
    elif options.hostfile or options.hosts:
        report = api.doctor_hosts(_hosts(options))
    else:
        report = api.doctor_scripts(options.script) if options.script else api.doctor()
    if options.json:
        tables.print_json(report.to_json() | {"exit_code": report.exit_code})
    else:
        tables.print_findings(report, every=options.all or options.build_ops is not None)
        sys.stdout.flush()
    return report.exit_code


def _require_one_place(options: Namespace) -> None:
    """Raises UserError for words that would be left unread: two places to look at, or hosts' options without hosts."""
    places = {
        "--script": options.script,
        "--log": options.log,
        "--build-ops": options.build_ops is not None,
        "--hostfile": options.hostfile,
        "--hosts": options.hosts,
    }
    chosen = [name for name, value in places.items() if value]
    if len(chosen) > 1:
        raise UserError(f"{' and '.join(chosen)} are looked at one by one", fix=f"headway doctor {chosen[0]} ... first")
    extra = {"--all-reduce": options.all_reduce, "--code": options.code, "--data": options.data, "--ssh": options.ssh}
    unread = [name for name, value in extra.items() if value]
    if unread and not (options.hostfile or options.hosts):
        raise UserError(f"{', '.join(unread)}: of which hosts?", fix="add --hostfile FILE, or --hosts node1,node2")


def _hosts(options: Namespace) -> HostsRequest:
    """Raises UserError or ConfigError for hosts that cannot be read, and for a port that is none."""
    from headway.check.hosts import HostsRequest
    from headway.launch.hostfile import parse_host, read_hostfile
    from headway.launch.nodelist import expand_nodelist

    if not 1 <= options.port <= 65535:
        raise UserError(problems=[Problem("--port", "is no port: 1 to 65535", options.port, "--port 29500")])
    try:
        hosts = read_hostfile(options.hostfile) if options.hostfile else None
        hosts = hosts or [parse_host(name) for name in expand_nodelist(options.hosts)]
    except ValueError as error:
        if isinstance(error, UserError):
            raise
        raise UserError(problems=[Problem("--hosts", str(error), options.hosts, "as in: node[1-4],gpu7")]) from error
    return HostsRequest(
        hosts=hosts,
        port=options.port,
        code=tuple(str(Path(path).absolute()) for path in options.code),
        data=tuple(str(Path(path).absolute()) for path in options.data),
        ssh=tuple(shlex.split(options.ssh)),
        all_reduce=options.all_reduce,
        floor_gigabit=options.floor,
    )


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
