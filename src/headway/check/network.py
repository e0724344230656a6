"""Can ranks find each other: names, interfaces, ports, and what a scheduler left in the environment."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from headway.check.host import Machine
from headway.check.report import Verdict, green, red, yellow
from headway.launch.ports import is_free

_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_NOT_TO_PEERS = re.compile(r"^(?:lo|docker|br-|veth|virbr|cni|flannel)")
_MPI = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "MV2_COMM_WORLD_SIZE")
_PORTS = range(1, 65536)


def host_name(name: str, machine: Machine) -> Verdict:
    """gloo and NCCL ask for the address behind the host's own name."""
    own = socket.gethostname()
    fix = f'echo "127.0.1.1 {own}" >> /etc/hosts' if not machine.several else f"add `ADDRESS {own}` to /etc/hosts"
    try:
        addresses = sorted({str(found[4][0]) for found in socket.getaddrinfo(own, None)})
    except OSError as error:
        return yellow(name, f"this host's own name {own} does not resolve: {error}", fix)
    evidence = f"{own} is {', '.join(addresses)}"
    if machine.several and all(address.startswith("127.") or address == "::1" for address in addresses):
        what = f"{own} resolves to this host's loopback: other hosts cannot reach a rank that announces it"
        return red(
            name, what, f"replace the line of {own} in /etc/hosts by its address in the network", evidence=evidence
        )
    return green(name, "the host's own name resolves", evidence=evidence)


def interface(name: str, machine: Machine) -> Verdict:
    """Interfaces that the environment chooses exist, and lead to peers where there are some."""
    addresses, states = psutil.net_if_addrs(), psutil.net_if_stats()
    for variable in _INTERFACES:
        given = machine.environment.get(variable, "")
        if not given or given.startswith("^"):
            continue
        for wanted in given.lstrip("=").split(","):
            exact = given.startswith("=") or variable != "NCCL_SOCKET_IFNAME"
            found = [one for one in addresses if one == wanted or (not exact and one.startswith(wanted))]
            evidence = f"{variable}={given}; there are {', '.join(sorted(addresses))}"
            if not found:
                return red(name, f"there is no network interface {wanted}", f"unset {variable}", evidence=evidence)
            if all(one in states and not states[one].isup for one in found):
                return red(name, f"{found[0]} is down", f"ip link set {found[0]} up", evidence=evidence)
            if machine.several and all(_NOT_TO_PEERS.match(one) for one in found):
                what = f"{found[0]} leads to no other host"
                return red(name, what, f"export {variable}={_outward(machine) or 'INTERFACE'}", evidence=evidence)
    chosen = _outward(machine)
    return green(name, f"{chosen or 'loopback'} is used", evidence=", ".join(sorted(addresses)))


def _outward(machine: Machine) -> str:
    """The interface of the default route."""
    try:
        lines = (machine.proc / "net/route").read_text(encoding="utf-8").splitlines()[1:]
    except OSError:
        return ""
    return next((line.split()[0] for line in lines if line.split()[1:2] == ["00000000"]), "")


def rendezvous_port(name: str, machine: Machine) -> Verdict:
    """MASTER_PORT, where the environment sets one: a number that can be, and free. Headway chooses its own."""
    given = machine.environment.get("MASTER_PORT")
    if given is None:
        return green(name, "none is set; Headway takes a free one")
    return judge_port(name, given, "MASTER_PORT", unset="unset MASTER_PORT")


def judge_port(name: str, given: str, key: str, *, unset: str) -> Verdict:
    """A port that was asked for, by whom it is held where that can be seen."""
    if not given.isdigit() or int(given) not in _PORTS:
        return red(name, f"{key}={given} is no port: 1 to 65535", f"export {key}=29500", evidence=f"{key}={given}")
    port = int(given)
    if port < 1024:
        return yellow(name, f"port {port} is for root alone", f"export {key}=29500", evidence=f"{key}={given}")
    if is_free(port):
        return green(name, f"port {port} is free")
    holder = port_holder(port)
    evidence = f"held by {holder}" if holder else "its holder belongs to another user or container"
    return yellow(name, f"port {port} is in use", f"{unset}, or: ss -ltnp 'sport = :{port}'", evidence=evidence)


def port_holder(port: int) -> str:
    """`pid 123 (python)` of the process that listens on a port; an empty string where it cannot be seen."""
    try:
        for one in psutil.net_connections("tcp"):
            if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port and one.pid:
                return f"pid {one.pid} ({psutil.Process(one.pid).name()})"
    except (psutil.Error, OSError):
        return ""
    return ""


def rank_variables(name: str, machine: Machine) -> Verdict:
    """WORLD_SIZE and RANK that a cluster set may count nodes; whoever reads them as processes trains wrongly."""
    environment = machine.environment
    if mpi := next((variable for variable in _MPI if variable in environment), None):
        what = "MPI started this shell; torch's wheels are built without MPI, so the backends are nccl and gloo"
        return yellow(name, what, "start with headway, torchrun or srun in place of mpirun", evidence=f"{mpi} is set")
    place = node_place(environment)
    said = {
        key: environment[key] for key in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "NPROC_PER_NODE") if key in environment
    }
    evidence = " ".join(f"{key}={value}" for key, value in said.items())
    if place is not None:
        what = (
            f"WORLD_SIZE={place.nodes} counts nodes here: {place.nodes} nodes of {place.processes} processes are "
            f"{place.world_size} ranks, and this node has {place.ranks[0]} to {place.ranks[-1]}"
        )
        fix = f"torchrun --nnodes={place.nodes} --node_rank={place.node} --nproc_per_node={place.processes} ..."
        return yellow(name, what, fix, evidence=evidence)
    if "WORLD_SIZE" in said or "RANK" in said:
        what = "rank variables are set in this shell; Headway sets its own for each rank"
        return yellow(name, what, "unset WORLD_SIZE RANK LOCAL_RANK", evidence=evidence)
    return green(name, "none is set")


@dataclass(frozen=True)
class NodePlace:
    """Where a node stands among others of as many processes."""

    nodes: int
    node: int
    processes: int  # of each node

    @property
    def world_size(self) -> int:
        return self.nodes * self.processes

    @property
    def ranks(self) -> range:
        return range(self.node * self.processes, (self.node + 1) * self.processes)


def node_place(environment: Mapping[str, str]) -> NodePlace | None:
    """The place that a cluster's variables give a node: WORLD_SIZE nodes, RANK this one, NPROC_PER_NODE processes each.

    None where they do not count nodes: without a number of processes, or with a LOCAL_RANK, they count ranks.
    """
    given = environment
    processes = next((given[k] for k in ("NPROC_PER_NODE", "PET_NPROC_PER_NODE") if given.get(k, "").isdigit()), "")
    size, rank = given.get("WORLD_SIZE", ""), given.get("RANK", "")
    if "LOCAL_RANK" in given or not processes or not size.isdigit() or not rank.isdigit():
        return None
    return NodePlace(int(size), int(rank), int(processes))
