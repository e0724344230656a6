"""`headway VERB ...`: reads the command line, runs the verb, says what went wrong in plain words.

Nothing heavy is imported here or by the help: no torch, pydantic, transformers or rich.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from headway.cli.parser import parse
from headway.errors import EXIT_OK, HeadwayError, Stopped

EXIT_INTERRUPTED = 130  # what a shell reports for a process ended by Ctrl-C
EXIT_BROKEN_PIPE = 141  # ... and by SIGPIPE: `headway show | head`


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code, see headway.errors."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _keep_output_printable()
    options: Namespace | None = None
    try:
        options = _parsed(arguments)
        code = options.run(options) if options else EXIT_OK
        sys.stdout.flush()
    except HeadwayError as error:
        return _say(str(error) or type(error).__name__, error, error.exit_code)
    except KeyboardInterrupt as error:
        return _say("interrupted", error, EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader has gone; what is still buffered must not raise again when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except Exception as error:
        where = _write_traceback(error, options, arguments)
        message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return _say(f"unexpected: {message}\n    the traceback is in {where}", error, HeadwayError.exit_code)
    return code


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
    print(f"{head}{message}", file=sys.stderr)
    if os.environ.get("HEADWAY_TRACEBACK") == "1":
        traceback.print_exception(error, file=sys.stderr)
    return code


def _keep_output_printable() -> None:
    """A terminal without UTF-8 shows escapes in place of letters that it lacks, rather than failing."""
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")


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
    return [*folders, Path(cache, "headway", "errors")]


if __name__ == "__main__":
    sys.exit(main())
