"""Real hosts on one machine: a network namespace each, with its own sshd, addresses and host names. Needs root."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

PREFIX = "hwt"
NET = "10.79.13"


@dataclass(frozen=True)
class Rig:
    """`ssh_config` is what `ssh -F` takes; the hosts are named hwt1, hwt2, ..."""

    folder: Path
    hosts: tuple[str, ...]

    @property
    def ssh_config(self) -> Path:
        return self.folder / "ssh_config"

    def cut(self, number: int) -> None:
        run("ip", "link", "set", f"v{PREFIX}{number}", "down")

    def mend(self, number: int) -> None:
        run("ip", "link", "set", f"v{PREFIX}{number}", "up")


def missing() -> str:
    """Why there can be no rig here; an empty string where there can."""
    if os.geteuid() != 0:
        return "needs root for network namespaces"
    absent = [tool for tool in ("ip", "ssh", "ssh-keygen") if shutil.which(tool) is None]
    absent += [] if Path("/usr/sbin/sshd").exists() else ["sshd"]
    if absent:
        return f"needs {', '.join(absent)} (openssh-server, openssh-client, iproute2)"
    tried = subprocess.run(["ip", "netns", "add", f"{PREFIX}-try"], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"no network namespace can be made: {tried.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", f"{PREFIX}-try"], capture_output=True, check=False)
    return ""


def run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=30)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr}")


@contextlib.contextmanager
def rig(folder: Path, count: int) -> Generator[Rig]:
    """`count` hosts on one bridge, for as long as the block lasts."""
    hosts = tuple(f"{PREFIX}{number}" for number in range(1, count + 1))
    _down(hosts)
    try:
        _up(folder, hosts)
        yield Rig(folder, hosts)
    finally:
        _down(hosts)


def _up(folder: Path, hosts: tuple[str, ...]) -> None:
    folder.chmod(0o700)
    Path("/run/sshd").mkdir(exist_ok=True)
    for key in ("id", "hostkey"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key))
    shutil.copy(folder / "id.pub", folder / "authorized_keys")
    bridge = f"br-{PREFIX}"
    run("ip", "link", "add", bridge, "type", "bridge")
    run("ip", "addr", "add", f"{NET}.254/24", "dev", bridge)
    run("ip", "link", "set", bridge, "up")
    names = "".join(f"{NET}.{number} {host}\n" for number, host in enumerate(hosts, start=1))
    known = ""
    for number, host in enumerate(hosts, start=1):
        run("ip", "netns", "add", host)
        etc = Path("/etc/netns") / host
        etc.mkdir(parents=True, exist_ok=True)
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        run("ip", "link", "add", f"v{host}", "type", "veth", "peer", "name", "eth0", "netns", host)
        run("ip", "link", "set", f"v{host}", "master", bridge, "up")
        run("ip", "-n", host, "addr", "add", f"{NET}.{number}/24", "dev", "eth0")
        run("ip", "-n", host, "link", "set", "eth0", "up")
        run("ip", "-n", host, "link", "set", "lo", "up")
        config = folder / f"sshd-{host}"
        config.write_text(
            f"ListenAddress {NET}.{number}\nHostKey {folder}/hostkey\nAuthorizedKeysFile {folder}/authorized_keys\n"
            f"PidFile {folder}/sshd-{host}.pid\nPermitRootLogin prohibit-password\nPasswordAuthentication no\n"
            "KbdInteractiveAuthentication no\nUsePAM no\nStrictModes no\nUseDNS no\nMaxStartups 100\n"
        )
        inside = f"hostname {host}; exec /usr/sbin/sshd -f {config} -E {folder}/sshd-{host}.log"
        run("ip", "netns", "exec", host, "unshare", "--uts", "sh", "-c", inside)
        known += f"{host},{NET}.{number} {(folder / 'hostkey.pub').read_text()}"
    (folder / "known_hosts").write_text(known)
    lines = [f"Host {host}\n  HostName {NET}.{number}\n" for number, host in enumerate(hosts, start=1)]
    (folder / "ssh_config").write_text(
        f"Host *\n  User root\n  IdentityFile {folder}/id\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {folder}/known_hosts\n  StrictHostKeyChecking yes\n" + "".join(lines)
    )


def _down(hosts: tuple[str, ...]) -> None:
    def quietly(*words: str) -> str:
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=30).stdout

    for host in hosts:
        for pid in quietly("ip", "netns", "pids", host).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), 9)
        quietly("ip", "netns", "del", host)
        shutil.rmtree(Path("/etc/netns") / host, ignore_errors=True)
    quietly("ip", "link", "del", f"br-{PREFIX}")
