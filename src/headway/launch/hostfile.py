"""A hostfile: one host a line, `[user@]name[:port] slots=N`, with comments; all wrong lines are named at once."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path

from headway.errors import ConfigError, Problem, UserError

_SLOTS = re.compile(r"slots=([0-9]+)")
_MOST_SLOTS = 4096  # more processes than any host has devices or cores
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9_-]*[A-Za-z0-9])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?")
_ZONE = re.compile(r"[A-Za-z0-9][\w.-]*")
_LOOKS_IPV4 = re.compile(r"[0-9.]*\.[0-9.]*")
_HERE = {"127.0.0.1": "localhost", "::1": "localhost"}
_FIX = "NAME slots=N, as in: node1 slots=4"


@dataclass(frozen=True)
class Host:
    """One host. user "" and port None: as ssh has them."""

    name: str  # a name or an address, IPv6 without brackets
    slots: int = 1
    user: str = ""
    port: int | None = None

    def __str__(self) -> str:
        return f"{self.name}:{self.slots}"


def read_hostfile(path: Path) -> list[Host]:
    """The hosts of a file, in its order.

    Raises UserError where it cannot be read (never a start on this machine alone), ConfigError with every line that is
    wrong.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = "there is no such file" if isinstance(error, FileNotFoundError) else str(error)
        fix = "name the file that lists the hosts; without a hostfile a run uses this machine alone"
        raise UserError(problems=[Problem("--hostfile", why, str(path.absolute()), fix)]) from error
    return parse_hostfile(text, str(path))


def parse_hostfile(text: str, where: str) -> list[Host]:
    """The hosts of a text. Blank lines, comments, tabs, CRLF and blanks at the end are nothing."""
    hosts: list[Host] = []
    lines: dict[str, int] = {}
    problems: list[Problem] = []
    for number, raw in enumerate(text.splitlines(), start=1):
        words = raw.partition("#")[0].split()
        if not words:
            continue
        place = f"{where}:{number}"
        try:
            host = _host(words)
        except ValueError as error:
            problems.append(Problem("hostfile", str(error), raw.strip(), _FIX, place))
            continue
        one = _same(host.name)
        if one in lines:
            rule = f"{host.name} stands on line {lines[one]} already"
            problems.append(Problem("hostfile", rule, raw.strip(), "one line a host, with all its slots", place))
        lines.setdefault(one, number)
        hosts.append(host)
    if len(lines) > 1 and "localhost" in lines:
        rule = "on each of several hosts this name is that host itself: the others could not reach it"
        place = f"{where}:{lines['localhost']}"
        problems.append(Problem("hostfile", rule, "localhost", "write the name that the other hosts know", place))
    if not hosts and not problems:
        problems.append(Problem("hostfile", "names no host", fix=_FIX, where=where))
    if problems:
        raise ConfigError(problems=problems)
    return hosts


def parse_host(text: str) -> Host:
    """`[user@]name[:port]`; IPv6 addresses bare, or in brackets where a port follows. Raises ValueError."""
    user, at, rest = text.rpartition("@")
    if at and not re.fullmatch(r"[A-Za-z_][\w.-]*\$?", user):
        raise ValueError(f"{user!r} is no user's name")
    name, port = rest, ""
    if match := re.fullmatch(r"\[([^\]]+)\](?::(.*))?", rest):
        name, port = match[1], match[2] or ""
        if not _is_address(name, 6):
            raise ValueError(f"{name!r} in brackets is no IPv6 address")
    elif rest.count(":") == 1:
        name, _, port = rest.partition(":")
    known = _is_address(name, 6) if ":" in name else _is_name(name)
    if not known or (_LOOKS_IPV4.fullmatch(name) and not _is_address(name, 4)):
        raise ValueError(f"{name!r} is no host's name or address")
    number = int(port) if port.isascii() and port.isdecimal() and len(port) < 9 else 0
    if (port or rest.endswith(":")) and not 1 <= number <= 65535:
        raise ValueError(f"{port!r} is no port: 1 to 65535")
    return Host(name, user=user, port=number or None)


def _is_name(text: str) -> bool:
    """RFC 1035: 63 characters a label, 253 in all."""
    return _NAME.fullmatch(text) is not None and len(text) <= 253 and all(len(one) <= 63 for one in text.split("."))


def _is_address(text: str, version: int) -> bool:
    """An IP address of this version; of IPv6 a zone may follow: fe80::1%eth0."""
    bare, mark, zone = text.partition("%")
    try:
        known = ipaddress.ip_address(bare).version == version
    except ValueError:
        return False
    return known and (not mark or (version == 6 and _ZONE.fullmatch(zone) is not None))


def _same(name: str) -> str:
    """Equal for two writings of one name or address."""
    bare, mark, zone = name.partition("%")
    if ":" in bare:
        address = ipaddress.IPv6Address(bare)
        return (
            _same(f"{address.ipv4_mapped}")
            if address.ipv4_mapped
            else _HERE.get(f"{address}", f"{address}") + mark + zone
        )
    plain = name.casefold().removesuffix(".")
    return _HERE.get(plain, plain)


def _host(words: list[str]) -> Host:
    host = parse_host(words[0])
    if len(words) == 1:
        raise ValueError("slots=N is missing: how many processes run on the host")
    if len(words) > 2:
        raise ValueError(f"nothing may follow slots=N: {' '.join(words[2:])!r}")
    match = _SLOTS.fullmatch(words[1])
    if match is None:
        raise ValueError(f"{words[1]!r} is not slots=N")
    if not 1 <= int(match[1]) <= _MOST_SLOTS:
        raise ValueError(f"slots must be at least 1 and at most {_MOST_SLOTS}")
    return Host(host.name, int(match[1]), host.user, host.port)
