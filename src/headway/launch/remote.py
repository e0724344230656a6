"""A command on another host by ssh: whatever its words and variables hold, they arrive byte for byte."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from headway.launch.hostfile import Host

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "-o", "ServerAliveInterval=5")


def remote_command(words: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """One line for the shell that ssh starts there. Raises ValueError for a variable's name that no shell takes."""
    variables: list[str] = []
    for name, value in (environment or {}).items():
        if not _NAME.fullmatch(name) or "\0" in value:
            raise ValueError(f"{name!r} cannot be passed as an environment variable")
        variables.append(f"{name}={value}")
    return shlex.join(["env", *variables, *words] if variables else words)


def ssh_command(host: Host, line: str, ssh: Sequence[str] = ()) -> list[str]:
    """The words that run `line` on a host; `ssh`: options of the user's own, such as -F FILE."""
    port = ["-p", str(host.port)] if host.port else []
    target = f"{host.user}@{host.name}" if host.user else host.name
    return [*_SSH, *ssh, *port, "--", target, line]
