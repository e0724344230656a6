"""A log parted into the ranks that wrote it, by file name or by what launchers put before each line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MOST_BYTES = 32 * 1024**2  # of one file: its beginning and its end
STARTED_AGAIN = "======== started again "

_FILE = (
    re.compile(r"rank[-_]?(\d+)"),  # rank-3.log
    re.compile(r"/(\d+)/std(?:err|out)\.log$"),  # torchrun --log-dir
)
# Outermost first: what stands before a line, and may be cut off.
_PREFIX = (
    re.compile(r"^\[(?:default|[\w.-]*?)(?P<rank>\d+)\]:\s?"),  # torchrun --tee: [default3]: , newer ones [trainer3]:
    re.compile(r"^\[rank(?P<rank>\d+)\]:\s?", re.IGNORECASE),
    re.compile(r"^\s*(?P<rank>\d+): "),  # srun --label
    re.compile(r"^\((?:[\w ]+)pid=(?P<pid>\d+)(?:, ip=[\d.]+)?\)\s"),  # ray
    re.compile(
        r"^(?!\w*(?:Error|Exception|Warning): )(?P<host>[A-Za-z][\w-]*(?:\.[\w-]+)*): "
        r"(?=\[|Traceback|  File| |\w+Error|ERROR|RuntimeError)"
    ),  # pdsh
)
_INSIDE = re.compile(r"\[(?:PG[^\]]*? )?Rank (?P<rank>\d+)\]")
_TIMES = (
    re.compile(r"\[[EWIF](?P<month>\d\d)?(?P<day>\d{1,2}) (?P<clock>\d\d:\d\d:\d\d(?:\.\d+)?)"),  # glog
    re.compile(r"\d{4}-\d\d-\d\d[T _](?P<clock>\d\d:\d\d:\d\d(?:[.,]\d+)?)"),
)


@dataclass(frozen=True)
class Line:
    """One line without its prefix. `time`: seconds of the day, where the line says it."""

    file: str
    number: int
    text: str
    rank: int | None
    host: str = ""
    time: float | None = None


def read(path: Path) -> Iterator[Line]:
    """The lines of the last start in a file. Raises OSError where it cannot be read."""
    lines = _text(path).splitlines()
    began = max((i for i, line in enumerate(lines) if line.startswith(STARTED_AGAIN)), default=0)
    of_file = next((int(found[1]) for form in _FILE if (found := form.search(str(path)))), None)
    for number, raw in enumerate(lines[began:], start=began + 1):
        yield parse(raw, str(path), number, of_file)


def _text(path: Path) -> str:
    size = path.stat().st_size
    with path.open("rb") as file:
        content = file.read(_MOST_BYTES)
        if size > 2 * _MOST_BYTES:
            file.seek(size - _MOST_BYTES)
        content += file.read(_MOST_BYTES)
    return content.decode("utf-8", errors="replace")


def parse(raw: str, file: str, number: int, of_file: int | None = None) -> Line:
    """One raw line: its rank, its host and its time, as far as it says them."""
    text, host = raw.rstrip("\r"), ""
    rank: int | None = None
    for _ in range(3):
        for form in _PREFIX:
            if match := form.match(text):
                groups = match.groupdict()
                if groups.get("rank") is not None and rank is None:
                    rank = int(groups["rank"])
                host = groups.get("host") or host
                text = text[match.end() :]
                break
        else:
            break
    rank = of_file if rank is None else rank
    if rank is None and (inside := _INSIDE.search(text)):
        rank = int(inside["rank"])
    return Line(file, number, text, rank, host, _time(text))


def _time(text: str) -> float | None:
    for form in _TIMES:
        if match := form.search(text):
            hours, minutes, seconds = match["clock"].replace(",", ".").split(":")
            return int(hours) * 3600 + int(minutes) * 60 + float(seconds)
    return None
