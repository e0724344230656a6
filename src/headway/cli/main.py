"""`headway VERB ...`: reads the command line, runs the verb, says what went wrong in plain words.

Nothing heavy is imported here or by the help: no torch, pydantic, transformers or rich.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from argparse import Namespace
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from headway.cli.parser import parse
from headway.errors import EXIT_OK, HeadwayError, Stopped

EXIT_INTERRUPTED = 130  # what a shell reports for a process ended by Ctrl-C
EXIT_TERMINATED = 143  # ... and by SIGTERM, where no rank runs yet that could save
EXIT_BROKEN_PIPE = 141  # ... and by SIGPIPE: `headway show | head`

# What the operating system refuses for reasons that are the user's to change -> how.
_REFUSED = {
    errno.ENOSPC: "free some space on that disk",
    errno.EDQUOT: "free some of your quota there",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f), or use another disk",
    errno.EROFS: "use a folder that can be written to",
    errno.EACCES: "use a folder of your own, or ask for its permissions",
    errno.EPERM: "use a folder of your own, or ask for its permissions",
    errno.ENAMETOOLONG: "use a shorter name",
    errno.ENOTDIR: "one part of that path is a file",
    errno.EEXIST: "move away what stands there",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code, see headway.errors."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _keep_output_printable()
    options: Namespace | None = None
    try:
        options = _parsed(arguments)
        with _sigterm_heard():
            code = options.run(options) if options else EXIT_OK
    except HeadwayError as error:
        code = _say(str(error) or type(error).__name__, error, error.exit_code)
    except _Terminated as error:
        code = _say("ended by SIGTERM", error, EXIT_TERMINATED)
    except KeyboardInterrupt as error:
        code = _say("interrupted", error, EXIT_INTERRUPTED)
    except BrokenPipeError:
        code = EXIT_BROKEN_PIPE
    except Exception as error:
        where = _write_traceback(error, options, arguments)
        code = _say(f"{_words(error)}\n    the traceback is in {where}", error, HeadwayError.exit_code)
    return _flushed(code)


class _Terminated(KeyboardInterrupt):
    """SIGTERM, taken as Ctrl-C is: half a token store is removed, and its worker processes end."""


@contextmanager
def _sigterm_heard() -> Generator[None]:
    """Where nobody else hears it; running a job, the launcher does."""

    def end(*_: object) -> None:
        raise _Terminated

    mine = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if mine:
        signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        if mine:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _flushed(code: int) -> int:
    """The exit code, after what is still buffered; where its reader has gone, it must not raise when Python exits."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            code = code or EXIT_BROKEN_PIPE
    return code


def _words(error: Exception) -> str:
    """What went wrong that no error of Headway's says: the system's refusal with its fix, else the exception."""
    if not isinstance(error, OSError) or error.errno not in _REFUSED:
        return f"unexpected: {type(error).__name__}: {error}".removesuffix(": ")
    what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    return f"{what}\n    fix: {_REFUSED[error.errno]}"


def _parsed(arguments: list[str]) -> Namespace | None:
    """The options; None where help was asked for and has been printed."""
    try:
        return parse(arguments)
    except SystemExit:
        return None


def _say(message: str, error: BaseException, code: int) -> int:
    head = "" if isinstance(error, Stopped | KeyboardInterrupt) else "error: "
    if head and sys.stderr.isatty() and "NO_COLOR" not in os.environ:
        head = f"\033[1;31m{head}\033[0m"
    with suppress(OSError):
        print(f"{head}{message}", file=sys.stderr)
    if os.environ.get("HEADWAY_TRACEBACK") == "1":
        traceback.print_exception(error, file=sys.stderr)
    return code


def _keep_output_printable() -> None:
    """A terminal without UTF-8 shows escapes in place of letters that it lacks, rather than failing.

    A daemon may start us with its output closed: Python then has no stream at all.
    """
    sys.stdout, sys.stderr = sys.stdout or _nowhere(), sys.stderr or _nowhere()
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")


def _nowhere() -> TextIO:
    return os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")


def _write_traceback(error: Exception, options: Namespace | None, arguments: list[str]) -> str:
    text = "".join(traceback.format_exception(error))
    name = f"headway-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    for folder in _traceback_folders(options):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / name
            path.write_text(f"headway {' '.join(arguments)}\n\n{text}", encoding="utf-8", errors="backslashreplace")
        except OSError:
            continue
        return str(path)
    return "no file: none can be written; set HEADWAY_TRACEBACK=1 to see it"


def _traceback_folders(options: Namespace | None) -> list[Path]:
    """The logs of the run that was named, if it is a path; else the user's cache."""
    folders: list[Path] = []
    run = getattr(options, "run_name", None)
    if isinstance(run, str) and Path(run, "logs").is_dir():
        folders.append(Path(run, "logs"))
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if cache.startswith("~"):  # a user without a home
        cache = tempfile.gettempdir()
    return [*folders, Path(cache, "headway", "errors")]


if __name__ == "__main__":
    sys.exit(main())
