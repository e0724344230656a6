"""From the paths of a run file to the files they name: globs, folders, `**`, and `${stdlib}`."""

from __future__ import annotations

import os
import re
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from headway.data.seam import InputFile
from headway.errors import DataError, Problem

STDLIB = "${stdlib}"
_WILD = re.compile(r"[*?\[]")
# Installed packages lie inside the standard library's folder and are no part of it.
_NOT_STDLIB = frozenset({"site-packages", "dist-packages"})


def locate(name: str, base: Path) -> Path:
    """The path behind a name: `${stdlib}/...`, `~/...`, an absolute path, or one relative to `base`."""
    if name == STDLIB or name.startswith(STDLIB + "/"):
        return Path(sysconfig.get_paths()["stdlib"], name[len(STDLIB) + 1 :])
    return base / os.path.expanduser(name)  # Path's own raises where a home is not known


def glob_pattern(pattern: str) -> re.Pattern[str]:
    """A glob as a regular expression over '/'-separated paths; `**` crosses folders, `*` and `?` do not."""
    parts: list[str] = []
    position = 0
    while position < len(pattern):
        rest = pattern[position:]
        if rest.startswith("**/"):
            parts.append("(?:.*/)?")
            position += 3
        elif rest.startswith("**"):
            parts.append(".*")
            position += 2
        elif rest[0] in "*?":
            parts.append("[^/]*" if rest[0] == "*" else "[^/]")
            position += 1
        elif rest[0] == "[" and "]" in rest[2:]:
            end = rest.index("]", 2)
            inside = rest[1:end].replace("\\", "\\\\")
            parts.append(f"[^{inside[1:]}]" if inside.startswith("!") else f"[{inside}]")
            position += end + 1
        else:
            parts.append(re.escape(rest[0]))
            position += 1
    return re.compile("".join(parts), re.DOTALL)


def expand(patterns: Iterable[str], base: Path, exclude: Iterable[str], key: str) -> list[InputFile]:
    """The files that the patterns name, each once, sorted by name.

    A file is itself, a folder all files below it. Hidden files and folders are left out unless a pattern names them.
    `exclude` holds globs: one without '/' is held against the last part of a name, others against the whole name.

    Raises:
        DataError: listing every pattern that names nothing, with names that are near.
    """
    banned = [(("/" in glob), glob_pattern(glob)) for glob in exclude]
    found: dict[str, InputFile] = {}
    problems: list[Problem] = []
    for pattern in patterns:
        matched = [file for file in _match(pattern, base) if not _is_banned(file.name, banned)]
        if not matched:
            problems.append(_nothing(pattern, base, key, excluded=bool(banned)))
        found.update((file.name, file) for file in matched)
    if problems:
        raise DataError(problems=problems)
    once: dict[tuple[int, int], InputFile] = {}
    for _, file in sorted(found.items()):
        status = file.path.stat()
        once.setdefault((status.st_dev, status.st_ino), file)
    return list(once.values())


def _is_banned(name: str, banned: list[tuple[bool, re.Pattern[str]]]) -> bool:
    last = name.rpartition("/")[2]
    return any(pattern.fullmatch(name if whole else last) for whole, pattern in banned)


def _match(pattern: str, base: Path) -> list[InputFile]:
    if not pattern.strip():  # nothing is not the root of the file system
        return []
    here = locate(pattern, base)
    if here.is_file():
        return [InputFile(pattern, here)]
    if here.is_dir():
        pattern = pattern.rstrip("/") + "/**"
    root, parts = _split_pattern(pattern)
    if not parts or not locate(root, base).is_dir():
        return []
    # A regex over the part below the root; how deep to look follows from the pattern.
    below = glob_pattern("/".join(parts))
    walk = _Walk(
        depth=None if "**" in pattern else len(parts), hidden=any(p.startswith(".") for p in parts), seen=set()
    )
    prefix = f"{root}/" if root not in ("", "/") else root
    top = locate(root, base)
    return [InputFile(prefix + name, top / name) for name in walk.files(top, root == STDLIB) if below.fullmatch(name)]


def _split_pattern(pattern: str) -> tuple[str, list[str]]:
    """'corpus/**/*.txt' -> ('corpus', ['**', '*.txt']): the folder to start from, and the rest."""
    parts = pattern.split("/")
    wild = next((i for i, part in enumerate(parts) if _WILD.search(part)), len(parts))
    root = "/".join(parts[:wild])
    return (root or ("/" if pattern.startswith("/") else "")), parts[wild:]


@dataclass(frozen=True)
class _Walk:
    """Files below a folder, sorted; each real folder once, so that a loop of links ends."""

    depth: int | None
    hidden: bool
    seen: set[tuple[int, int]]

    def files(self, folder: Path, stdlib: bool, prefix: str = "", level: int = 1) -> Iterator[str]:
        status = folder.stat()
        if (status.st_dev, status.st_ino) in self.seen:
            return
        self.seen.add((status.st_dev, status.st_ino))
        for entry in sorted(os.scandir(folder), key=lambda e: e.name):
            if (entry.name.startswith(".") and not self.hidden) or entry.name == "__pycache__":
                continue
            if _holds(entry.is_file):
                yield prefix + entry.name
            elif (self.depth is None or level < self.depth) and self._enters(entry, stdlib):
                yield from self.files(Path(entry.path), stdlib, f"{prefix}{entry.name}/", level + 1)

    def _enters(self, entry: os.DirEntry[str], stdlib: bool) -> bool:
        return _holds(entry.is_dir) and not (stdlib and entry.name in _NOT_STDLIB)


def _holds(question: Callable[[], bool]) -> bool:
    """No for a link that leads to itself, of which the system only says that it gives up."""
    try:
        return question()
    except OSError:
        return False


def _nothing(pattern: str, base: Path, key: str, *, excluded: bool) -> Problem:
    """Why a pattern names no file, with what is near."""
    root, _ = _split_pattern(pattern)
    folder = locate(root, base)
    where = f"{key}.paths"
    if folder.is_file():
        return Problem(where, "options.exclude leaves it out", pattern, f"change {key}.options.exclude")
    if folder.is_dir():
        endings = Counter(Path(name).suffix or "no ending" for name in _Walk(3, False, set()).files(folder, False))
        held = ", ".join(f"{count} {ending}" for ending, count in endings.most_common(5)) or "no files"
        hint = f"{folder} holds {held}" + ("; options.exclude leaves files out" if excluded else "")
        return Problem(where, "names no file", pattern, f"{hint}; change the pattern, or put files there")
    if folder.exists() or folder.is_symlink():
        what = "is no file but a device or a pipe" if folder.exists() else "is a link to a file that is not there"
        return Problem(where, what, pattern, "name files, folders or globs")
    parent, missing = folder, folder.name
    while not parent.is_dir():
        missing, parent = parent.name, parent.parent
    names = sorted(entry.name for entry in os.scandir(parent) if not entry.name.startswith("."))
    near = get_close_matches(missing, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else _listing(names)
    return Problem(where, f"there is no {missing!r} in {parent}", pattern, hint)


def _listing(names: list[str]) -> str:
    shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    return f"paths are relative to the run file's folder; that folder holds: {shown or 'nothing'}"
