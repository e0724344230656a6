"""Which rank failed first, in its own words. Ranks that lose a peer fail after it: those errors are echoes."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.errors import EXIT_KILLED, Stopped, WorkerFailed, exit_codes
from headway.launch.files import STARTED_AGAIN
from headway.launch.seam import JobStatus, RankFailure
from headway.run.paths import RunDir
from headway.units import format_bytes

# What gloo, NCCL and torch's store say to a rank whose peer has gone.
_ECHO = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|broken pipe|timed? ?out|recvvalue"
    r"|gloo|nccl|tcpstore|dist(backend|network|store)error",
    re.IGNORECASE,
)
_TIMEOUT = re.compile(r"timed? ?out", re.IGNORECASE)
_ERROR_LINE = re.compile(
    r"^(?:[\w.]+(?:Error|Exception|Interrupt|Failed|Exit|Stopped|Diverged)\b|Fatal Python error:).*"
)
_LOG_TAIL_BYTES = 64 * 1024
_WORDS_BYTES = 64 * 1024  # a rank's error and its traceback


@dataclass(frozen=True)
class RankEnd:
    """How one rank ended."""

    rank: int
    exit_code: int  # negative: by that signal
    time: float  # unix seconds, when it was last seen alive
    ended_by_launcher: bool = False


@dataclass(frozen=True)
class _Claim:
    """A rank's failure, with what decides its place in the order."""

    rank: int
    exit_code: int
    error: str
    time: float
    echo: bool


def fails(end: RankEnd) -> bool:
    """Whether a rank ended otherwise than by finishing or by saving on request."""
    return end.exit_code not in (0, Stopped.exit_code)


def judge(ends: Sequence[RankEnd], run_dir: Path) -> JobStatus:
    """The job's status from its ranks' ends: done, stopped and saved, or failed with the first failure."""
    claims = [claim for end in ends if (claim := _claim(end, run_dir)) is not None]
    if claims:
        first = min(claims, key=lambda claim: (claim.echo, claim.time, claim.rank))
        error = first.error + _missing_ranks(first, ends)
        failure = RankFailure(first.rank, first.exit_code, error, RunDir(run_dir).logs(first.rank))
        return JobStatus("failed", job_exit_code(first.exit_code), failure)
    if any(end.exit_code == Stopped.exit_code for end in ends):
        return JobStatus("stopped", Stopped.exit_code)
    return JobStatus("done", 0)


def job_exit_code(rank_exit_code: int) -> int:
    """A rank's own code where the table in headway.errors knows it, else that of a failed worker."""
    known = set(exit_codes().values()) - {1, Stopped.exit_code}
    return rank_exit_code if rank_exit_code in known else WorkerFailed.exit_code


def _claim(end: RankEnd, run_dir: Path) -> _Claim | None:
    own = _own_error(run_dir, end.rank)
    if own is not None and fails(end):
        error, time, code = own
        exit_code = code if end.ended_by_launcher else end.exit_code
        return _Claim(end.rank, exit_code, error, time, _ECHO.search(error) is not None)
    if not fails(end) or end.ended_by_launcher:
        return None
    error = explain_exit(end.exit_code, last_error_line(RunDir(run_dir).logs(end.rank))) + _full_disk(run_dir)
    echo = end.exit_code > 0 and _ECHO.search(error) is not None
    return _Claim(end.rank, end.exit_code, error, end.time, echo)


def _own_error(run_dir: Path, rank: int) -> tuple[str, float, int] | None:
    """(error, unix seconds, exit code) that the rank wrote itself; None if it wrote none or was cut off writing."""
    try:
        written = json.loads(RunDir(run_dir).rank_error(rank).read_text(encoding="utf-8"))
        message, kind = str(written["message"]), str(written.get("type", ""))
        error = message if not kind or message.startswith(kind) else f"{kind}: {message}"
        return error, float(written["time"]), int(written.get("exit_code", 1))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def explain_exit(exit_code: int, last_line: str = "") -> str:
    """An exit without a written error, in words: the signal's name, what usually sends it, the log's last error."""
    number = -exit_code if exit_code < 0 else exit_code - 128 if exit_code > 128 else 0
    said = f"; its log ends with: {last_line}" if last_line else ""
    if number == signal.SIGKILL or exit_code == EXIT_KILLED:
        return f"killed by SIGKILL (out of memory? the kernel's log says so){said}"
    if number in {item.value for item in signal.Signals}:
        return f"ended by {signal.Signals(number).name} ({signal.strsignal(number)}){said}"
    return f"{last_line or 'no error was written'} (exit code {exit_code})"


def _full_disk(run_dir: Path) -> str:
    """Why a rank's own words may be missing; an empty string while there is room for them."""
    try:
        free_bytes = shutil.disk_usage(run_dir).free
    except OSError:
        return ""
    if free_bytes >= _WORDS_BYTES:
        return ""
    return f"\nthe disk of {run_dir} is full ({format_bytes(free_bytes)} free): the rank's own words may be missing"


def last_error_line(log: Path) -> str:
    """The last line of the log that names an error, or an empty string."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
            lines = file.read().decode("utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    since = [i for i, line in enumerate(lines) if line.startswith(STARTED_AGAIN)]
    errors = [line for line in lines[since[-1] if since else 0 :] if _ERROR_LINE.match(line)]
    return errors[-1].strip() if errors else ""


def _missing_ranks(first: _Claim, ends: Sequence[RankEnd]) -> str:
    """After a collective's time-out the culprit is a rank that never arrived: one that was still running then."""
    if not (first.echo and _TIMEOUT.search(first.error)):
        return ""
    late = [str(end.rank) for end in ends if end.ended_by_launcher and end.rank != first.rank]
    return f"\nstill running and not in this collective, see their logs: rank {', '.join(late)}" if late else ""
