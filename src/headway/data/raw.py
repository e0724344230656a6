"""What the raw data is: a hash over the files' bytes, each file read once as long as it does not change."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headway.data.seam import InputFile
from headway.errors import DataError, Problem
from headway.run.whole import write_whole

# A file changed again within the clock's grain keeps its mtime: what is this young is not remembered.
_YOUNG_SECONDS = 2.0


@dataclass(frozen=True)
class RawData:
    """`stamps` are path -> (size, mtime in ns) as they were before hashing."""

    sha256: str
    stamps: dict[str, tuple[int, int]]

    def changed(self) -> list[str]:
        """Files that are no longer what was hashed."""
        return [path for path, stamp in self.stamps.items() if _stamp(path) != stamp]


def hash_raw(files: Iterable[InputFile], cache: Path) -> RawData:
    """sha256 over the names and contents of `files`; each file's own hash is kept in `cache`/hashes.json.

    Raises:
        DataError: naming the files that cannot be read.
    """
    files = list(files)
    record = cache / "hashes.json"
    known = _read(record)
    paths = [os.path.realpath(file.path) for file in files]
    stamps = {path: _stamp(path) for path in paths}
    missing = [path for path in stamps if known.get(path, [0, 0, ""])[:2] != list(stamps[path])]
    with ThreadPoolExecutor() as threads:
        answers = dict(zip(missing, threads.map(_sha256, missing), strict=True))
    problems = [
        Problem("data", f"cannot be read: {answer.strerror}", where=path, fix="change its permissions, or leave it out")
        for path, answer in answers.items()
        if isinstance(answer, OSError)
    ]
    if problems:
        raise DataError(problems=problems[:20])
    fresh = {path: answer for path, answer in answers.items() if isinstance(answer, str)}
    hashes = {path: fresh.get(path) or str(known[path][2]) for path in paths}
    _remember(record, fresh, stamps)
    whole = hashlib.sha256()
    for file, path in zip(files, paths, strict=True):
        whole.update(json.dumps([file.name, hashes[path]]).encode())
    return RawData(whole.hexdigest(), stamps)


def _stamp(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return (-1, -1)
    return status.st_size, status.st_mtime_ns


def _sha256(path: str) -> str | OSError:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return error


def _read(record: Path) -> dict[str, list[int | str]]:
    try:
        return json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _remember(record: Path, fresh: dict[str, str], stamps: dict[str, tuple[int, int]]) -> None:
    limit = time.time_ns() - int(_YOUNG_SECONDS * 1e9)
    settled = {path: [*stamps[path], sha] for path, sha in fresh.items() if stamps[path][1] < limit}
    if not settled:
        return
    # Read again, so that what another process wrote meanwhile is kept.
    merged = _read(record) | settled
    with suppress(OSError):  # the next run hashes again
        record.parent.mkdir(parents=True, exist_ok=True)
        write_whole(record, json.dumps(merged, separators=(",", ":")))
