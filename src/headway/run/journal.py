"""Append-only journals of JSON lines: metrics.jsonl and events.jsonl.

A line is written in one piece, so readers in other processes never see a mixture; a line torn by a crash is skipped.
JSON has no NaN: a number that is not finite is written as the string 'NaN', 'Infinity' or '-Infinity' and read back.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class Journal:
    """Opened for appending; kept over a resume. Raises OSError where the line cannot be written."""

    def __init__(self, path: Path):
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        size_bytes = os.fstat(self._descriptor).st_size
        # A torn last line gets its line end, else the next line would be lost with it.
        self._torn = size_bytes > 0 and os.pread(self._descriptor, 1, size_bytes - 1) != b"\n"

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, line: Mapping[str, Any]) -> None:
        """Add one line, in one write."""
        text = json.dumps(finite(line), allow_nan=False, separators=(",", ":"))
        content = (("\n" if self._torn else "") + text + "\n").encode()
        self._torn = True
        while content:  # a second turn only where a disk that fills up cut the first
            content = content[os.write(self._descriptor, content) :]
        self._torn = False

    def event(self, name: str, **fields: Any) -> None:
        """Add {"time": now, "event": name, ...}."""
        self.append({"time": time.time(), "event": name, **fields})

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Follower:
    """Reads a journal as it grows; `poll` returns the whole lines that came since the last call."""

    def __init__(self, path: Path):
        self.path = path
        self._offset = 0

    def poll(self) -> list[dict[str, Any]]:
        """New lines, oldest first; [] while there are none or the file does not exist yet."""
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    self._offset = 0
                file.seek(self._offset)
                content = file.read()
        except FileNotFoundError:
            return []
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        return _parse(whole)


def follow(path: Path) -> Follower:
    """A follower from the first line on."""
    return Follower(path)


def read(path: Path, *, latest_per_step: bool = False) -> list[dict[str, Any]]:
    """All whole lines, oldest first; [] if the file does not exist.

    latest_per_step is for metrics.jsonl, which has one line a step: after a resume from step 100 it drops what an
    earlier attempt wrote beyond it. A line with step s supersedes every earlier line with a step of s or more; lines
    without a step stay.
    """
    lines = follow(path).poll()
    return latest(lines) if latest_per_step else lines


def latest(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines that stand, in order, by the rule of `read(latest_per_step=True)`."""
    kept: list[dict[str, Any]] = []
    reached = -1
    for line in lines:
        step = line.get("step")
        if isinstance(step, int):
            if step <= reached:
                kept = [old for old in kept if not (isinstance(old.get("step"), int) and old["step"] >= step)]
            reached = step
        kept.append(line)
    return kept


def _parse(content: bytes) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for raw in content.splitlines():
        try:
            line: object = json.loads(raw)
        except ValueError:
            continue
        if isinstance(line, dict):
            lines.append(_restored(cast("dict[str, Any]", line)))
    return lines


def finite(value: Any) -> Any:
    """The value with every number that JSON does not have as a string."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in cast("Mapping[object, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in cast("Iterable[Any]", value)]
    return value


def _restored(line: dict[str, Any]) -> dict[str, Any]:
    return {key: _NON_FINITE.get(value, value) if isinstance(value, str) else value for key, value in line.items()}
