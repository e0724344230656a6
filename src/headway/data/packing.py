"""Documents to windows of fixed length, by an index of fragments beside the token store.

Packed: the documents of a split stand in one line, in an order drawn from the store's hash, and the line is cut every
`sequence` tokens. Unpacked: a window for each document, cut off after `sequence` tokens. A fragment is a run of one
document in one window. Its positions start at 0, for attention reaches no further back than the fragment.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headway.data.arrays import Split, TokenStore
from headway.data.order import windows_at
from headway.data.seam import IGNORE, Sample

_INDEX_VERSION = 1


@dataclass(frozen=True)
class Layout:
    """How a split is cut: at most `sequence` tokens a window, many documents a window if `packing`."""

    split: Split
    sequence: int
    packing: bool

    @property
    def stem(self) -> str:
        return f"index-v{_INDEX_VERSION}-{self.split}-{self.sequence}-{'packed' if self.packing else 'single'}"


@dataclass(frozen=True)
class Index:
    """fragments: int64 [fragments, 3] of (first token in the store, length, 1 if it holds the document's last token).

    windows: int64 [windows + 1], the first fragment of each window.
    """

    fragments: np.ndarray
    windows: np.ndarray

    @property
    def targets(self) -> int:
        """Positions that have a token to predict: all but each document's last."""
        return int(self.fragments[:, 1].sum() - self.fragments[:, 2].sum())


class Windows:
    """A SampleSource over a store and an index. Holds no state of its own: any thread may read."""

    def __init__(self, store: TokenStore, index: Index):
        self.store, self.index = store, index
        self._shards, self._starts = store.shards, store.starts
        self._windows, self._fragments = index.windows, index.fragments
        longest = int(index.fragments[:, 1].max()) if len(index.fragments) else 0
        self._count = np.arange(longest, dtype=np.int32)

    def __len__(self) -> int:
        return len(self._windows) - 1

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        fragments = self._fragments[self._windows[index] : self._windows[index + 1]].tolist()
        size = sum(length for _, length, _ in fragments)
        tokens, labels = np.empty(size, dtype=np.int32), np.empty(size, dtype=np.int32)
        positions, documents = np.empty(size, dtype=np.int32), np.empty(size, dtype=np.int32)
        at = 0
        for number, (start, length, ends) in enumerate(fragments):
            shard = bisect_right(self._starts, start) - 1
            content, first = self._shards[shard], start - self._starts[shard]
            end = at + length
            tokens[at:end] = content[first : first + length]
            # The token behind a fragment that does not end its document is in the same file.
            labels[at : end - ends] = content[first + 1 : first + 1 + length - ends]
            if ends:
                labels[end - 1] = IGNORE
            positions[at:end] = self._count[:length]
            documents[at:end] = number
            at = end
        return Sample(index, tokens, labels, positions, documents)


def open_windows(store: TokenStore, layout: Layout) -> Windows:
    """The layout's windows; their index is read, or made and kept beside the store."""
    return Windows(store, open_index(store, layout))


def open_index(store: TokenStore, layout: Layout) -> Index:
    fragments, windows = (store.path / f"{layout.stem}.{name}.npy" for name in ("fragments", "windows"))
    if not windows.is_file():
        index = _packed(store, layout) if layout.packing else _single(store, layout)
        try:
            _save(fragments, index.fragments)
            _save(windows, index.windows)  # last: where it stands, the other does
        except (PermissionError, OSError):
            return index  # a store that may only be read: the index costs a second, not a failure
    return Index(np.asarray(np.load(fragments, mmap_mode="r")), np.asarray(np.load(windows, mmap_mode="r")))


def _save(path: Path, array: np.ndarray) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as out:
            np.save(out, array)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def document_order(store: TokenStore, split: Split) -> np.ndarray:
    """The split's document numbers in the order in which they are packed: a pure function of the store's hash."""
    documents = store.documents(split)
    if not len(documents):
        return documents
    return documents[windows_at(int(store.manifest.hash[:16], 16), 0, len(documents), len(documents))]


def _packed(store: TokenStore, layout: Layout) -> Index:
    order = document_order(store, layout.split)
    first = store.offsets[order]
    lengths = store.offsets[order + 1] - first
    line = np.cumsum(lengths) - lengths  # where each document begins in the line
    total = int(lengths.sum())
    cuts = np.arange(0, total, layout.sequence, dtype=np.int64)
    starts = np.union1d(line, cuts)  # each fragment begins with a document or with a window
    ends = np.append(starts[1:], total)[: len(starts)]
    document = np.searchsorted(line, starts, side="right") - 1
    fragments = np.stack(
        [
            first[document] + starts - line[document],
            ends - starts,
            ends == line[document] + lengths[document],
        ],
        axis=1,
    ).astype(np.int64)
    return Index(fragments, np.append(np.searchsorted(starts, cuts), len(starts)).astype(np.int64))


def _single(store: TokenStore, layout: Layout) -> Index:
    order = document_order(store, layout.split)
    first = store.offsets[order]
    lengths = store.offsets[order + 1] - first
    kept = np.minimum(lengths, layout.sequence)
    fragments = np.stack([first, kept, kept == lengths], axis=1).astype(np.int64)
    return Index(fragments, np.arange(len(order) + 1, dtype=np.int64))


def truncated(store: TokenStore, layout: Layout) -> tuple[int, int]:
    """(documents, tokens) that a layout without packing cuts off; (0, 0) with packing, which loses nothing."""
    if layout.packing:
        return 0, 0
    lengths = np.diff(store.offsets)[store.documents(layout.split)]
    over = lengths - layout.sequence
    return int((over > 0).sum()), int(over[over > 0].sum())
