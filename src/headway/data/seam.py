"""Text to documents, documents to tokens, tokens to packed windows, windows to samples. No torch here: numpy only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from headway.errors import Problem


@dataclass(frozen=True)
class Document:
    """One document. `where` names it for a person: 'corpus/a.txt' or 'chats.jsonl:17'.

    record: what it was read from, where that is more than a text (a chat, a label); see headway.data.shapes.
    """

    text: str
    where: str
    source: int = 0
    record: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Skip:
    """A record that gives no document. Counted by `reason`; with a `problem` it stops the build instead."""

    where: str
    reason: str
    problem: Problem | None = None


@dataclass(frozen=True)
class InputFile:
    """A file that documents are made of. `name` is the path as the user wrote it, '/'-separated."""

    name: str
    path: Path


class DataSource(Protocol):
    """Made as `Source(config, base, key)` from a SourceConfig, the run file's folder and the key that errors name.

    Making one is cheap: files are looked up by shards() and files(), and read by documents(), which runs in worker
    processes. A shard's name says all that documents() needs.
    """

    def shards(self) -> list[str]:
        """What can be read independently (files, row groups), in a fixed order. Raises DataError for none."""
        ...

    def documents(self, shard: str) -> Iterator[Document | Skip]:
        """The documents of one shard, in order; bad text is a Skip that names file, line and byte."""
        ...

    def files(self) -> list[InputFile]:
        """The files whose bytes decide what is read; [] where the configuration alone decides it."""
        ...

    def size_bytes(self, shard: str) -> int:
        """About how much text a shard holds: for progress, and to share the work out evenly."""
        ...


class ProgressReporter(Protocol):
    """Told of long work in bytes of text. May be called from several threads."""

    def start(self, total_bytes: int) -> None: ...

    def advance(self, count: int) -> None: ...

    def note(self, text: str) -> None: ...


class Silent:
    """A ProgressReporter that says nothing."""

    def start(self, total_bytes: int) -> None:
        pass

    def advance(self, count: int) -> None:
        pass

    def note(self, text: str) -> None:
        pass


IGNORE = -100


@dataclass(frozen=True)
class Sample:
    """One packed window.

    tokens:    int32 [n], n <= sequence
    labels:    int32 [n], the token to predict at each position, IGNORE where none (document end, masked)
    positions: int32 [n], restarting at 0 with each document
    documents: int32 [n], number of the document within the window; attention stays inside a number
    label:     of a labelled text, the number of its class; else IGNORE
    held:      of a text with any number of labels, their numbers in order; else None
    reference: of a pair of answers, the log-probabilities of both under the reference model, where they are known
    A filler has n = 0: it is counted as nothing.
    """

    index: int
    tokens: np.ndarray
    labels: np.ndarray
    positions: np.ndarray
    documents: np.ndarray
    label: int = IGNORE
    held: tuple[int, ...] | None = None
    reference: tuple[float, float] | None = None


class SampleSource(Protocol):
    """The windows of one split of a token store; thread-safe, memory-mapped."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample: ...
