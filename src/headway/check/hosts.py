"""Several hosts by ssh: are they reached, are they alike, do ports answer both ways, how fast is an all-reduce."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from headway.check.report import Report, Verdict, green, red, yellow
from headway.errors import UserError
from headway.launch.hostfile import Host
from headway.launch.remote import remote_command, ssh_command

PACKAGES = ("torch", "deepspeed", "transformers", "numpy", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "headway")
_ANSWER_SECONDS = 12.0
_REDUCE_SECONDS = 60.0
_CLOCK_SECONDS = 1.0  # beyond what the connection's own delay can explain
_LATENCY_MS = 5.0
# Reads the program's length, the program, then leaves standard input to it.
_START = "import sys; n = int(sys.stdin.readline()); exec(compile(sys.stdin.read(n), 'headway', 'exec'))"


@dataclass(frozen=True)
class HostsRequest:
    """What to ask of which hosts. ssh: options of the user's own. floor_gigabit: least bandwidth of an all-reduce."""

    hosts: Sequence[Host]
    port: int = 29500
    code: Sequence[str] = ()
    data: Sequence[str] = ()
    ssh: Sequence[str] = ()
    all_reduce: bool = False
    floor_gigabit: float = 1.0
    packages: Sequence[str] = PACKAGES


_Variables = dict[str, str] | None


@dataclass
class _Far:
    """A host with a program running on it; lines that begin with @ are its answers."""

    host: Host
    process: subprocess.Popen[str]
    started: float
    lines: queue.Queue[dict[str, Any] | None] = field(default_factory=queue.Queue)
    errors: list[str] = field(default_factory=list[str])
    first: dict[str, Any] = field(default_factory=dict[str, Any])
    offset_seconds: float = 0.0  # of its clock, least by as much as the delay leaves open
    reached: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        self._readers = [threading.Thread(target=target, daemon=True) for target in (self._read, self._complain)]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            if line.startswith("@"):
                self.lines.put(json.loads(line[1:]))
        self.lines.put(None)

    def _complain(self) -> None:
        self.errors += [line.strip() for line in self.process.stderr or () if line.strip()]

    def ask(self, *lines: object) -> None:
        """Send JSON lines; a host that has gone says so in its answer."""
        try:
            if self.process.stdin is not None:
                for line in lines:
                    self.process.stdin.write(line if isinstance(line, str) else json.dumps(line) + "\n")
                self.process.stdin.flush()
        except OSError:
            pass

    def answer(self, seconds: float) -> dict[str, Any] | None:
        try:
            return self.lines.get(timeout=seconds)
        except queue.Empty:
            return None

    def end(self, by: float) -> None:
        """It was asked to end: killed at the time `by`, with what it has started (ssh's helpers too), and reaped."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, by - time.monotonic()))
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for reader in self._readers:
            reader.join(1)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


@contextlib.contextmanager
def _begun(request: HostsRequest, variables: Sequence[_Variables]) -> Iterator[list[_Far]]:
    """A program on each host. All are ended together, also where one of them could not be started."""
    far: list[_Far] = []
    try:
        for host, environment in zip(request.hosts, variables, strict=True):
            far.append(_start(host, request, environment))
        yield far
    finally:
        for one in far:
            one.ask("\n")
        by = time.monotonic() + 1.0
        with contextlib.ExitStack() as stack:  # each, also where another's end fails
            for one in far:
                stack.callback(one.end, by)


def examine_hosts(request: HostsRequest) -> Report:
    """Every verdict over these hosts; one that does not answer is a verdict, not a wait."""
    program = Path(__file__).with_name("far_side.py").read_text(encoding="utf-8")
    with _begun(request, [None] * len(request.hosts)) as far:
        asked = {"packages": list(request.packages), "port": request.port, "code": request.code, "data": request.data}
        with ThreadPoolExecutor(max(1, len(far))) as pool:
            list(pool.map(lambda one: _introduce(one, program, asked), far))
            there = [one for one in far if one.first]
            names = [one.host.name for one in there]
            list(pool.map(lambda one: _meet(one, names), there))
            found = [*_reachable(far), *_alike(there), _clocks(there), *_ports(there, request.port)]
    if request.all_reduce and len(there) == len(far):
        found.append(_all_reduce(request))
    return Report(tuple(found))


def _start(host: Host, request: HostsRequest, environment: _Variables) -> _Far:
    here = shlex.quote(sys.executable)
    inner = f'if [ -x {here} ]; then exec {here} -u -c "$0"; else exec python3 -u -c "$0"; fi'
    line = remote_command(["sh", "-c", inner, _START], environment)
    try:
        process = subprocess.Popen(
            ssh_command(host, line, request.ssh),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise UserError(
            "hosts are asked by ssh, and there is no ssh here", fix="apt-get install openssh-client"
        ) from error
    return _Far(host, process, time.time())


def _introduce(one: _Far, program: str, asked: dict[str, Any]) -> None:
    one.ask(f"{len(program)}\n{program}", asked)
    sent = time.time()
    answer = one.answer(_ANSWER_SECONDS)
    if answer is not None:
        one.first = answer
        # The far clock was read between sending and now: what lies outside is a difference for certain.
        early, late = sent - float(answer["clock"]), float(answer["clock"]) - time.time()
        one.offset_seconds = -early if early > 0 else max(0.0, late)


def _meet(one: _Far, names: list[str]) -> None:
    one.ask([name for name in names if name != one.host.name])
    answer = one.answer(_ANSWER_SECONDS) or {}
    one.reached = cast("dict[str, Any]", answer.get("reached", {}))


def _reachable(far: list[_Far]) -> list[Verdict]:
    away = [one for one in far if not one.first]
    if not away:
        return [green("ssh", f"{len(far)} hosts answer", evidence=", ".join(one.host.name for one in far))]
    return [
        red(
            "ssh",
            f"{one.host.name} cannot be reached by ssh",
            f"ssh-copy-id {one.host.name}, then try: ssh {one.host.name} true",
            evidence=one.errors[-1] if one.errors else f"no answer within {_ANSWER_SECONDS:g} s",
        )
        for one in away
    ]


def _alike(there: list[_Far]) -> list[Verdict]:
    """One verdict for each fact that differs; the whole table beside the first."""
    if not there:
        return []
    keys = [key for key in there[0].first["facts"] if any(one.first["facts"].get(key) for one in there)]
    found: list[Verdict] = []
    for key in keys:
        values = {one.host.name: str(one.first["facts"].get(key) or "absent") for one in there}
        absent = next((value for value in values.values() if value.startswith("absent: ")), None)
        if len(set(values.values())) > 1 or absent:
            told = ", ".join(f"{name}: {value}" for name, value in values.items())
            what = f"{key} is not the same on every host" if absent is None else f"{key}: {absent}"
            found.append(red(f"drift-{key}", what, _same(key, values), evidence=told))
    rows = [("host", *keys), *((o.host.name, *(str(o.first["facts"].get(k) or "-") for k in keys)) for o in there)]
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    table = "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)
    if not found:
        return [green("drift", f"{len(there)} hosts are alike", evidence=table)]
    return [yellow("drift", f"{len(found)} differences between the hosts", "see below", evidence=table), *found]


def _same(key: str, values: dict[str, str]) -> str:
    first, wanted = next(iter(values.items()))
    others = [name for name, value in values.items() if value != wanted] or list(values)[1:2]
    if key in ("code", "data"):
        return f"rsync -a PATH {others[0] if others else first}:PATH, from {first}"
    if key == "python":
        return f"the same environment on every host, as on {first}: Python {wanted}"
    return f"ssh {others[0] if others else first} python -m pip install {key}=={wanted}"


def _clocks(there: list[_Far]) -> Verdict:
    off = [one for one in there if abs(one.offset_seconds) > _CLOCK_SECONDS]
    if off:
        told = ", ".join(f"{one.host.name}: {one.offset_seconds:+.1f} s" for one in off)
        what = f"the clock of {', '.join(one.host.name for one in off)} differs from this host's"
        return yellow("drift-clock", what, f"ssh {off[0].host.name} timedatectl set-ntp true", evidence=told)
    return green("drift-clock", "the clocks agree, as far as the connection's delay lets it be seen")


def _ports(there: list[_Far], port: int) -> list[Verdict]:
    taken = [one for one in there if one.first["port_problem"]]
    found = [
        red(
            "port",
            f"port {port} cannot be used on {one.host.name}",
            "--port with another",
            evidence=one.first["port_problem"],
        )
        for one in taken
    ]
    failed = [
        (one.host.name, peer, str(said))
        for one in there
        for peer, said in one.reached.items()
        if isinstance(said, str) and peer not in {other.host.name for other in taken}
    ]
    for peer in dict.fromkeys(peer for _, peer, _ in failed):
        told = "; ".join(f"from {source}: {why}" for source, to, why in failed if to == peer)
        names = any(word in told for word in ("not known", "resolution", "No address"))
        fix = f"add {peer} to /etc/hosts or the DNS of each host" if names else f"open port {port} on {peer} (firewall)"
        found.append(red("tcp", f"{peer}:{port} cannot be reached from every host", fix, evidence=told))
    pairs = sum(len(one.reached) for one in there)
    if not found and pairs:
        slowest = max(float(said) for one in there for said in one.reached.values())
        what = f"{pairs} connections on port {port}, each host to each other, the slowest in {slowest:.0f} ms"
        found.append(green("tcp", what))
    return found


def _all_reduce(request: HostsRequest) -> Verdict:
    program = Path(__file__).with_name("far_reduce.py").read_text(encoding="utf-8")
    hosts = list(request.hosts)
    base = {"MASTER_ADDR": hosts[0].name, "MASTER_PORT": str(request.port), "WORLD_SIZE": str(len(hosts))}
    base |= {"LOCAL_RANK": "0", "OMP_NUM_THREADS": "1"}
    with _begun(request, [base | {"RANK": str(rank)} for rank in range(len(hosts))]) as far:
        for one in far:
            one.ask(f"{len(program)}\n{program}")
        answer = far[0].answer(_REDUCE_SECONDS)
    if answer is None:
        words = [one.errors[-1] for one in far if one.errors]
        fix = "set NCCL_SOCKET_IFNAME (or GLOO_SOCKET_IFNAME) to the interface that routes to the peers"
        said = words[0] if words else "no answer"
        return red("all-reduce", "an all-reduce over the hosts failed", fix, evidence=said)
    latency, speed = float(answer["latency_ms"]), float(answer["gigabit_per_second"])
    told = f"latency {latency:.2f} ms, {speed:.2f} Gbit/s a host ({answer['backend']})"
    if speed < request.floor_gigabit or latency > _LATENCY_MS:
        what = f"the all-reduce is slower than {request.floor_gigabit:g} Gbit/s, or than {_LATENCY_MS:g} ms a message"
        return yellow("all-reduce", what, "is the fast network used? NCCL_SOCKET_IFNAME, NCCL_IB_HCA", evidence=told)
    return green("all-reduce", told)
