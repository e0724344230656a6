"""Text to documents, documents to tokens, tokens to packed windows, windows to samples. No torch here: numpy only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class Document:
    """One document. `where` names it for a person: 'corpus/a.txt' or 'chats.jsonl:17'."""

    text: str
    where: str
    source: int = 0


class DataSource(Protocol):
    """Yields documents; opening is cheap, reading happens in worker processes, one shard each."""

    def shards(self) -> list[str]:
        """What can be read independently (files, row groups), in a fixed order; [] is an error for the caller."""
        ...

    def documents(self, shard: str) -> Iterator[Document]:
        """The documents of one shard, in order. Raises DataError naming file, line and byte of bad text."""
        ...


@dataclass(frozen=True)
class Sample:
    """One packed window.

    tokens:    int32 [n], n <= sequence
    labels:    int32 [n], the token to predict at each position, IGNORE where none (document end, masked)
    positions: int32 [n], restarting at 0 with each document
    documents: int32 [n], number of the document within the window; attention stays inside a number
    A filler has n = 0: it is counted as nothing.
    """

    index: int
    tokens: np.ndarray
    labels: np.ndarray
    positions: np.ndarray
    documents: np.ndarray


IGNORE = -100


class SampleSource(Protocol):
    """The windows of one split of a token store; thread-safe, memory-mapped."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample: ...
