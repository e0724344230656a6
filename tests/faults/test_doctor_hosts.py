"""`headway doctor --hostfile` over real ssh between network namespaces, with a fault planted in each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes import netns
from headway.check import hosts as hosts_module
from headway.check.hosts import HostsRequest, examine_hosts
from headway.check.report import Report, Verdict
from headway.errors import UserError
from headway.launch.hostfile import Host

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[netns.Rig]:
    if why := netns.missing():
        pytest.skip(why)
    with netns.rig(tmp_path_factory.mktemp("rig"), 2) as made:
        yield made


def ask(rig: netns.Rig, *names: str, **request: object) -> Report:
    chosen = [Host(name) for name in names or rig.hosts]
    given = {"packages": ("packaging",), **request}
    return examine_hosts(HostsRequest(chosen, ssh=("-F", str(rig.ssh_config)), **given))  # pyright: ignore[reportArgumentType]


def by_name(report: Report) -> dict[str, Verdict]:
    return {verdict.name: verdict for verdict in report.verdicts}


def test_sound_hosts_and_an_all_reduce(hosts: netns.Rig, tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("some text")
    report = ask(hosts, data=(str(tmp_path),), all_reduce=True, floor_gigabit=0.0)
    found = by_name(report)
    assert {name: verdict.level for name, verdict in found.items() if name != "all-reduce"} == {
        "ssh": "green",
        "drift": "green",
        "drift-clock": "green",
        "tcp": "green",
    }
    assert "2 connections on port 29500, each host to each other" in found["tcp"].finding
    assert found["drift"].evidence.splitlines()[0].split() == ["host", "packaging", "python", "data"]
    assert "Gbit/s a host" in found["all-reduce"].finding + found["all-reduce"].evidence


def test_a_host_that_is_cut_off_and_one_that_has_no_name(hosts: netns.Rig) -> None:
    hosts.cut(2)
    try:
        found = [v for v in ask(hosts, "hwt1", "hwt2").verdicts if v.level == "red"]
    finally:
        hosts.mend(2)
    assert [v.finding for v in found] == ["hwt2 cannot be reached by ssh"]
    assert any(word in found[0].evidence for word in ("timed out", "No route", "no answer"))
    unknown = [v for v in ask(hosts, "hwt1", "no-such-host.invalid").verdicts if v.level == "red"]
    assert "Could not resolve" in unknown[0].evidence


def test_data_that_one_host_lacks_and_a_port_that_is_taken(hosts: netns.Rig, tmp_path: Path) -> None:
    """Another program holds the port on one of them."""
    absent = by_name(ask(hosts, data=(f"{tmp_path}/nowhere",)))
    assert absent["drift-data"].level == "red"
    assert f"absent: {tmp_path}/nowhere" in absent["drift-data"].finding
    program = "import socket, time\ns = socket.socket()\ns.bind(('', 29511))\ns.listen(1)\nprint('up', flush=True)\n"
    words = ["ip", "netns", "exec", "hwt2", sys.executable, "-c", f"{program}time.sleep(99)"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as taken:
        assert taken.stdout is not None
        assert taken.stdout.readline() == "up\n"
        found = by_name(ask(hosts, port=29511))
        taken.kill()
    assert found["port"].level == "red"
    assert "hwt2" in found["port"].finding


def test_a_firewall_between_two_hosts(hosts: netns.Rig) -> None:
    """A route to nowhere on one host: it is reached, and cannot reach."""
    netns.run("ip", "-n", "hwt1", "route", "add", "unreachable", f"{netns.NET}.2/32")
    try:
        found = ask(hosts).verdicts
    finally:
        netns.run("ip", "-n", "hwt1", "route", "del", "unreachable", f"{netns.NET}.2/32")
    away = next(verdict for verdict in found if verdict.finding.startswith("hwt2:29500 cannot be reached"))
    assert (away.name, away.level) == ("tcp", "red")
    assert "from hwt1:" in away.evidence


def test_other_versions_and_another_clock(hosts: netns.Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for ssh runs the far side here, under another Python path for one host."""
    for name, version in (("one", "2.13.0"), ("two", "2.12.1")):
        info = tmp_path / name / "torch_of_test-1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch-of-test\nVersion: {version}\n")
    (tmp_path / "ssh").write_text(
        f'#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nPYTHONPATH={tmp_path}/$2 exec sh -c "$3"\n'
    )
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    report = examine_hosts(HostsRequest([Host("one"), Host("two")], port=29512, packages=("torch-of-test",)))
    found = by_name(report)
    assert found["drift-torch-of-test"].evidence == "one: 2.13.0, two: 2.12.1"
    assert found["drift-torch-of-test"].fix == "ssh two python -m pip install torch-of-test==2.13.0"
    assert "one   2.13.0" in found["drift"].evidence


def test_every_far_side_is_reaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that reads nothing and has a child of its own, and a host whose start fails after it."""
    (tmp_path / "ssh").write_text("#!/bin/sh\nsleep 99 & echo $$ $! >> $PIDS\nsleep 99\n")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
    monkeypatch.setattr(hosts_module, "_ANSWER_SECONDS", 0.5)
    report = examine_hosts(HostsRequest([Host("one"), Host("two")]))
    assert [verdict.name for verdict in report.verdicts if verdict.level == "red"] == ["ssh", "ssh"]
    started = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(started) == 4
    assert [pid for pid in started if _runs(pid)] == []
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(UserError, match="there is no ssh here"):
        examine_hosts(HostsRequest([Host("one")]))


def _runs(pid: int) -> bool:
    """Whether it lives; one that is dead and not yet reaped by init does not."""
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"
