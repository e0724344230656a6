"""The error tree, and the one table of exit codes.

    HeadwayError                     1   anything not listed below
    ├── UserError (ValueError)       2   what the user wrote is wrong: a list of Problems
    │   ├── ConfigError              2   the run file or an override
    │   ├── PlanError                2   no legal plan follows from it, or plan.json was changed by hand
    │   ├── DataError                3   the data: absent, empty, undecodable
    │   ├── ModelError               3   the model or tokenizer: absent, unreadable, does not fit the data
    │   └── MissingExtra             2   an optional package is not installed
    ├── CheckFailed                  4   a red finding stopped the run before it began
    ├── WorkerFailed                 5   a rank died; its own error is shown
    ├── CheckpointError              6   no complete checkpoint, damage, no room on the disk
    ├── ExportError                  7   the export is absent or could not be verified
    ├── RunDiffers                   8   the run ended, but not as planned (steps, tokens or learning rates)
    ├── NotCertified                10   the plan was refused by `headway certify`: a claim failed
    ├── Diverged                     9   loss or gradients stayed non-finite; the last good checkpoint stands
    └── Stopped                     75   Ctrl-C or SIGTERM: saved, `headway resume` goes on (EX_TEMPFAIL)

Errors for users carry every Problem at once. A traceback goes to the log, never to the screen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

EXIT_OK = 0
EXIT_KILLED = 137  # what a shell reports for a process ended by SIGKILL; listed, never returned by Headway itself


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: the key, the value, the rule it breaks, and the fix."""

    key: str
    rule: str
    value: object = None
    fix: str = ""
    where: str = ""  # "run.yaml:12" or "--set train.length"

    def __str__(self) -> str:
        head = f"{self.where}: " if self.where else ""
        value = "" if self.value is None else f" = {self.value!r}"
        fix = f"\n    fix: {self.fix}" if self.fix else ""
        return f"{head}{self.key}{value}: {self.rule}{fix}"


class HeadwayError(Exception):
    """Root of everything that Headway raises on purpose."""

    exit_code = 1

    def __init__(self, message: str = "", *, fix: str = "", problems: Iterable[Problem] = ()):
        self.problems = tuple(problems)
        self.fix = fix
        lines = [message] if message else []
        lines += [str(problem) for problem in self.problems]
        if fix:
            lines.append(f"    fix: {fix}")
        super().__init__("\n".join(lines))


class UserError(HeadwayError, ValueError):
    exit_code = 2


class ConfigError(UserError):
    pass


class PlanError(UserError):
    pass


class DataError(UserError):
    exit_code = 3


class ModelError(UserError):
    exit_code = 3


class MissingExtra(UserError):
    """An optional package is absent; says which extra brings it."""

    def __init__(self, package: str, extra: str, needed_for: str):
        super().__init__(
            f"{needed_for} needs the package {package!r}, which is not installed",
            fix=f"pip install 'headway[{extra}]'",
        )


class CheckFailed(HeadwayError):
    exit_code = 4


class WorkerFailed(HeadwayError):
    exit_code = 5


class CheckpointError(HeadwayError):
    exit_code = 6


class ExportError(HeadwayError):
    exit_code = 7


class RunDiffers(HeadwayError):
    exit_code = 8


class NotCertified(HeadwayError):
    exit_code = 10


class Diverged(HeadwayError):
    exit_code = 9


class Stopped(HeadwayError):
    exit_code = 75


def _tree(root: type[HeadwayError]) -> Iterable[type[HeadwayError]]:
    yield root
    for child in root.__subclasses__():
        yield from _tree(child)


def exit_codes() -> dict[str, int]:
    """Every error's name and exit code, read by the documentation and by `show`."""
    return {error.__name__: error.exit_code for error in _tree(HeadwayError)}


_PLANNED_LINE = re.compile(r"^\s+[├└│].*?(\w+)(?: \(\w+\))?\s+(\d+) ", re.MULTILINE)


def documented_exit_codes() -> dict[str, int]:
    """The table in this module's docstring, so that a test can hold it to the classes."""
    return {name: int(code) for name, code in _PLANNED_LINE.findall(__doc__ or "")}
