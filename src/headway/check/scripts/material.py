"""The files to be judged, and how a fault in them is said."""

from __future__ import annotations

import codecs
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headway.check.report import Verdict
from headway.errors import Problem, UserError

Kind = Literal["python", "shell", "docker", "config", "manifest"]
_SKIPPED = {".git", ".venv", "venv", "node_modules", "__pycache__", "site-packages"}
_MOST_FILES = 5000  # of a folder: a source tree, not a disk


@dataclass(frozen=True)
class Script:
    """One file's text. `path` as the user wrote it."""

    path: Path
    kind: Kind
    text: str
    lines: tuple[str, ...] = field(default=(), repr=False)

    def at(self, line: int) -> str:
        """`train.py:41: dist.barrier()`."""
        code = self.lines[line - 1].strip() if 0 < line <= len(self.lines) else ""
        return f"{self.path}:{line}: {code}"


@dataclass(frozen=True)
class Fault:
    """Where a fault stands, what happens because of it, and the fix. `must`: the run fails or is wrong for certain."""

    rule: str
    line: int
    what: str
    fix: str
    must: bool = True

    def verdict(self, script: Script) -> Verdict:
        return Verdict(self.rule, "red" if self.must else "yellow", self.what, self.fix, script.at(self.line))


def gather(paths: list[Path]) -> tuple[list[Script], list[Path]]:
    """(the scripts named, those of a folder that were too many to read).

    Of a folder: every Python file, shell script, Dockerfile, manifest and JSON in it.

    Raises UserError with every path that is absent, unreadable or of no kind that is known.
    """
    problems: list[Problem] = []
    scripts: list[Script] = []
    left_out: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = [one for one in sorted(path.rglob("*")) if one.is_file() and not _SKIPPED & set(one.parts)]
            known: list[tuple[Path, Kind]] = [(one, kind) for one in inside if (kind := kind_of(one)) is not None]
            scripts += [_read(one, kind) for one, kind in known[:_MOST_FILES]]
            left_out += [one for one, _ in known[_MOST_FILES:]]
            continue
        try:
            kind = kind_of(path)
            if kind is None:
                rule = "is no Python, shell script, Dockerfile, manifest or DeepSpeed JSON"
                fix = "name it *.py, *.sh, *.json, *.yaml or Dockerfile"
                problems.append(Problem("--script", rule, str(path), fix))
            else:
                scripts.append(_read(path, kind))
        except OSError as error:
            where = f"there is nothing at {path.absolute()}" if not path.exists() else error.strerror or str(error)
            problems.append(Problem("--script", f"cannot be read: {where}", str(path)))
    if problems:
        raise UserError(problems=problems)
    return scripts, left_out


def kind_of(path: Path) -> Kind | None:
    """By its name, else by its first line; None where neither says."""
    name = path.name.lower()
    if name.endswith(".py"):
        return "python"
    if name.endswith((".sh", ".bash", ".slurm", ".sbatch")):
        return "shell"
    if name.endswith(".json"):
        return "config"
    if name.endswith((".yaml", ".yml")):
        return "manifest"
    if name in ("dockerfile", "containerfile") or name.startswith("dockerfile.") or name.endswith(".dockerfile"):
        return "docker"
    with path.open("rb") as file:
        first = file.readline(200)
    if first.startswith(b"#!") and b"python" in first:
        return "python"
    return "shell" if first.startswith(b"#!") and b"sh" in first else None


def _read(path: Path, kind: Kind) -> Script:
    raw = path.read_bytes()
    wide = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))  # as PowerShell writes
    text = raw.decode("utf-16" if wide else "utf-8-sig", errors="replace").replace("\r\n", "\n")
    return Script(path, kind, text, tuple(text.split("\n")))
