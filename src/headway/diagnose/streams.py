"""A log parted into the ranks that wrote it, by file name or by what launchers put before each line."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MOST_BYTES = 32 * 1024**2  # of one file: its beginning and its end
_LONGEST = 4000  # characters of a line
STARTED_AGAIN = "======== started again "

_FILE = (
    re.compile(r"rank[-_]?(\d+)"),  # rank-3.log
    re.compile(r"/(\d+)/std(?:err|out)\.log$"),  # torchrun --log-dir
)
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_BEGINS = r"(?=\[|Traceback|  File| |\w+Error|ERROR|RuntimeError)"
_WRITES = r"(?=Traceback|\[rank\d+\]:| *File \"|[A-Za-z_][\w.]*(?:Error|Exception)\b)"
# Outermost first: what stands before a line, and may be cut off.
_PREFIX = (
    # docker and kubectl logs --timestamps; a container runtime's own file says the stream as well
    re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d) (?:std(?:out|err) [FP] )?"),
    re.compile(r"^[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d (?P<host>[\w.-]+) [\w.@-]+(?:\[\d+\])?: "),  # journalctl
    re.compile(r"^\[pod/(?P<host>[^/\]]+)/[^\]]+\] "),  # kubectl logs --prefix
    re.compile(r"^(?P<host>[\w.-]+-\d+) +\| "),  # docker compose
    # Azure's joined logs; and a time that a wrapper puts before what Python writes
    re.compile(r"^\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)? \[(?P<host>[\w.-]+), ?[\w.]+\] ?"),
    re.compile(rf"^[\[【]?\d{{4}}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?[\]】]?:? ?(?:\[[A-Z]+\] )?{_WRITES}"),
    re.compile(r"^\[\d+,(?P<task>\d+)\]<std(?:out|err)>: ?"),  # mpirun --tag-output
    re.compile(r"^\[(?:default|[\w.-]*?)(?P<rank>\d+)\]:\s?"),  # torchrun --tee: [default3]: , newer ones [trainer3]:
    re.compile(r"^\[rank(?P<rank>\d+)\]:\s?", re.IGNORECASE),
    re.compile(r"^\s*(?P<task>\d+): "),  # srun --label
    re.compile(r"^\((?:[\w ]+)pid=(?P<pid>\d+)(?:, ip=[\d.]+)?\)\s"),  # ray
    re.compile(
        r"^(?!(?:\w*(?:Error|Exception|Warning)|Message|Reason|Status|State): )"
        r"(?P<host>[A-Za-z][\w-]*(?:\.[\w-]+)*|\d{1,3}(?:\.\d{1,3}){3}): " + _BEGINS
    ),  # pdsh
)
_INSIDE = re.compile(r"\[(?:PG[^\]]*? )?Rank (?P<rank>\d+)\]")
_TIMES = (
    re.compile(r"\[[EWIF](?P<month>\d\d)?(?P<day>\d{1,2}) (?P<clock>\d\d:\d\d:\d\d(?:\.\d+)?)"),  # glog
    re.compile(r"^[A-Z][a-z]{2} [ \d]\d (?P<clock>\d\d:\d\d:\d\d) "),
    re.compile(r"\d{4}-\d\d-\d\d[T _](?P<clock>\d\d:\d\d:\d\d(?:[.,]\d+)?)"),
)


@dataclass(frozen=True)
class Line:
    """One line without its prefix. `time`: seconds of the day, where the line says it.

    `by_task`: its rank is the task's number that srun or mpirun put before it, and no word of its own.
    """

    file: str
    number: int
    text: str
    rank: int | None
    host: str = ""
    time: float | None = None
    by_task: bool = False


def read(path: Path) -> Iterator[Line]:
    """The lines of the last start in a file. Raises OSError where it cannot be read."""
    lines = _dedented(_text(path).splitlines())
    began = max((i for i, line in enumerate(lines) if line.startswith(STARTED_AGAIN)), default=0)
    of_file = next((int(found[1]) for form in _FILE if (found := form.search(str(path)))), None)
    for number, raw in enumerate(lines[began:], start=began + 1):
        yield parse(raw, str(path), number, of_file)


def _dedented(lines: list[str]) -> list[str]:
    """Without what every line is indented by: a log that was copied out of a page."""
    indents = [len(line) - len(line.lstrip(" ")) for line in lines if line.strip()]
    common = min(indents, default=0)
    return [line[common:] for line in lines] if common else lines


def _text(path: Path) -> str:
    size = path.stat().st_size
    with path.open("rb") as file:
        content = file.read(_MOST_BYTES)
        if size > 2 * _MOST_BYTES:
            file.seek(size - _MOST_BYTES)
        content += file.read(_MOST_BYTES)
    wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))  # PowerShell's `> train.log`
    return content.decode("utf-16" if wide else "utf-8-sig", errors="replace")


def parse(raw: str, file: str, number: int, of_file: int | None = None) -> Line:
    """One raw line: its rank, its host and its time, as far as it says them."""
    if len(raw) > _LONGEST:  # a printed tensor; no error's words are so long
        raw = f"{raw[: _LONGEST - 500]} ... {raw[-500:]}"
    raw = _COLOURS.sub("", raw.rstrip("\r"))
    text, host = raw, ""
    rank: int | None = None
    task: int | None = None
    for _ in range(4):
        for form in _PREFIX:
            if match := form.match(text):
                groups = match.groupdict()
                own = groups.get("rank") is not None
                if own and (rank is None or match[0].lstrip().startswith("[rank")):  # --tee names the local rank
                    rank = int(groups["rank"])
                if task is None and groups.get("task") is not None:
                    task = int(groups["task"])
                host = groups.get("host") or host
                text = text[match.end() :]
                break
        else:
            break
    if rank is None and task is None:
        rank = of_file
    if rank is None and (inside := _INSIDE.search(text)):
        rank = int(inside["rank"])
    by_task = rank is None and task is not None
    return Line(file, number, text, task if by_task else rank, host, _time(raw), by_task)


def _time(text: str) -> float | None:
    for form in _TIMES:
        if match := form.search(text):
            hours, minutes, seconds = match["clock"].replace(",", ".").split(":")
            return int(hours) * 3600 + int(minutes) * 60 + float(seconds)
    return None
