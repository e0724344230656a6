"""No token or password in what runs wrote: records, configs, logs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from headway.check.host import Machine
from headway.check.report import Verdict, green, red
from headway.run.secrets import has_secret, secret_values

_MOST_BYTES = 1024**2  # of one file
_MOST_FILES = 400
_FORMS = ("record.json", "record.diff", "run.yaml", "plan.json", "events.jsonl", "launch.sh", "logs/*.log")


def secrets(name: str, machine: Machine) -> Verdict:
    """The newest runs below this folder: values of secret variables, and texts in the form of a service's token."""
    roots = [path for path in (machine.folder, machine.folder / "runs") if path.is_dir()]
    known = secret_values(machine.environment)
    found: list[str] = []
    for path in list(_files(roots))[:_MOST_FILES]:
        try:
            with path.open("rb") as file:
                text = file.read(_MOST_BYTES).decode("utf-8", errors="replace")
        except OSError:
            continue
        if has_secret(text, known):
            found.append(str(path))
    if found:
        what = "a token or password stands in what a run wrote"
        fix = "revoke it where it was issued, then delete it there; secrets belong in environment variables"
        return red(name, what, fix, evidence=", ".join(found[:5]))
    return green(name, "none in the records and logs of runs here")


def _files(roots: list[Path]) -> Iterator[Path]:
    for root in roots:
        for run in sorted(root.iterdir(), reverse=True):
            if (run / "plan.json").is_file() or (run / "run.yaml").is_file():
                for form in _FORMS:
                    yield from run.glob(form)
