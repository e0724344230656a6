"""Documents to windows of fixed length, by an index of fragments beside the token store.

packed: the documents of a split stand in one line, in an order drawn from the store's hash, and the line is cut every
`sequence` tokens. single: a window for each document, cut off after `sequence` tokens. best_fit (chats): as single, but
windows hold several whole documents, each put where it leaves the least room. A fragment is a run of one document in
one window. Its positions start at 0, for attention reaches no further back than the fragment.

pair (preferences): the two fragments of a document, the chosen and the rejected answer, each cut off after `sequence`
tokens; a pair of which one has nothing to learn there is left out.

A chat of which nothing within `sequence` tokens is learnt is left out: its loss would be a calm 0 of nothing.
"""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from headway.data.arrays import Split, TokenStore
from headway.data.best_fit import best_fit
from headway.data.manifest import Kind
from headway.data.mixing import mixture_of
from headway.data.order import windows_at
from headway.data.seam import IGNORE, Sample

_INDEX_VERSION = 1
How = Literal["packed", "single", "best_fit", "pair"]


@dataclass(frozen=True)
class Layout:
    """How a split is cut: at most `sequence` tokens a window, many documents a window if `packing`.

    weights: shares of the sources' windows; then a window holds documents of one source only. (): as the text has it.
    """

    split: Split
    sequence: int
    packing: bool
    weights: tuple[float, ...] = ()

    def how(self, kind: Kind) -> How:
        """The layout that a store of this kind gets: a chat is never cut in two, a labelled text stands alone."""
        if kind == "preference":
            return "pair"
        if not self.packing or kind == "labelled":
            return "single"
        return "best_fit" if kind == "chat" else "packed"

    def stem(self, kind: Kind) -> str:
        plain = f"index-v{_INDEX_VERSION}-{self.split}-{self.sequence}-{self.how(kind)}"
        if not self.weights:
            return plain
        return f"{plain}-mix-{hashlib.sha256(repr(self.weights).encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class Index:
    """fragments: int64 [fragments, 3] of (first token in the store, length, 1 if it holds the document's last token).

    windows: int64 [windows + 1], the first fragment of each window.
    mixture: int64 [windows of an epoch], which window each is, where sources are mixed by weight; else None.
    """

    fragments: np.ndarray
    windows: np.ndarray
    mixture: np.ndarray | None = None

    def __len__(self) -> int:
        """Windows of an epoch."""
        return len(self.windows) - 1 if self.mixture is None else len(self.mixture)

    def lengths(self) -> np.ndarray:
        """int64 [windows of an epoch]: tokens of each."""
        ends = np.concatenate([[0], np.cumsum(self.fragments[:, 1])])[self.windows]
        whole = np.diff(ends)
        return whole if self.mixture is None else whole[self.mixture]


class Windows:
    """A SampleSource over a store and an index. Holds no state of its own: any thread may read."""

    def __init__(self, store: TokenStore, index: Index):
        self.store, self.index = store, index
        self._shards, self._masks, self._starts = store.shards, store.masks, store.starts
        self._classes = store.labels
        self._closing = store.manifest.tokenizer.end
        self._windows, self._fragments = index.windows, index.fragments
        longest = int(index.fragments[:, 1].max()) if len(index.fragments) else 0
        self._count = np.arange(longest, dtype=np.int32)

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        at = index if self.index.mixture is None else int(self.index.mixture[index])
        fragments = self._fragments[self._windows[at] : self._windows[at + 1]].tolist()
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
            if self._masks:
                learnt = self._masks[shard][first + 1 : first + 1 + length - ends]
                labels[at : end - ends][learnt == 0] = IGNORE
            positions[at:end] = self._count[:length]
            documents[at:end] = number
            at = end
        if self._classes is None:
            return Sample(index, tokens, labels, positions, documents)
        # One text with its class: no position predicts a token, and a text that is cut ends as a whole one does.
        labels[:] = IGNORE
        number = int(np.searchsorted(self.store.offsets, fragments[0][0], side="right")) - 1
        last = self.store.document(number)[-1]
        if last == self._closing:
            tokens[-1] = last
        if self.store.has_sets:
            held = tuple(self.store.labels_of(number).tolist())
            return Sample(index, tokens, labels, positions, documents, held=held)
        return Sample(index, tokens, labels, positions, documents, int(self._classes[number]))


def open_windows(store: TokenStore, layout: Layout) -> Windows:
    """The layout's windows; their index is read, or made and kept beside the store."""
    return Windows(store, open_index(store, layout))


def open_index(store: TokenStore, layout: Layout) -> Index:
    stem = layout.stem(store.manifest.kind)
    names = ("fragments", "mixture", "windows") if layout.weights else ("fragments", "windows")
    files = {name: store.path / f"{stem}.{name}.npy" for name in names}
    if files["windows"].is_file():
        return Index(**{name: np.asarray(np.load(file, mmap_mode="r")) for name, file in files.items()})
    index = _mixed(store, layout) if layout.weights else _cut(store, layout, document_order(store, layout.split))
    with suppress(OSError):  # a store that may only be read: the index costs a second, not a failure
        for name, file in files.items():
            _save(file, getattr(index, name))  # windows last: where they stand, the others do
    return index


def _cut(store: TokenStore, layout: Layout, order: np.ndarray) -> Index:
    """The windows of these documents, in this order."""
    how = layout.how(store.manifest.kind)
    if how == "pair":
        return Index(*_pairs(store, layout, order))
    return Index(*(_packed(store, layout, order) if how == "packed" else _whole(store, layout, order, how)))


def _mixed(store: TokenStore, layout: Layout) -> Index:
    """Each source cut on its own; the windows one source after the other, and which of them an epoch reads.

    Raises DataError where a source with a weight has no window.
    """
    order = document_order(store, layout.split)
    of = store.sources[order]
    parts = [_cut(store, layout, order[of == number]) for number in range(len(layout.weights))]
    counts = [len(part) for part in parts]
    mixture = mixture_of(counts, layout.weights, int(store.manifest.hash[:16], 16))
    before = np.cumsum([0, *(len(part.fragments) for part in parts)])
    windows = [part.windows[:-1] + start for part, start in zip(parts, before, strict=False)]
    return Index(np.concatenate([part.fragments for part in parts]), np.concatenate([*windows, before[-1:]]), mixture)


def short_windows(index: Index, sequence: int) -> int:
    """How many windows of an epoch are shorter than `sequence`."""
    return int((index.lengths() < sequence).sum())


def targets(store: TokenStore, index: Index) -> int:
    """What is learnt from: each labelled text; else every position with a learnt token behind it in its document."""
    fragments = index.fragments
    if store.labels is not None:
        return len(index)
    if store.seconds is not None:
        return len(index)
    counts = store.learnt_counts(fragments[:, 0] + 1, fragments[:, 1] - fragments[:, 2])
    if index.mixture is None:
        return int(counts.sum())
    return int(np.diff(np.concatenate([[0], np.cumsum(counts)])[index.windows])[index.mixture].sum())


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


def _packed(store: TokenStore, layout: Layout, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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
    return fragments, np.append(np.searchsorted(starts, cuts), len(starts)).astype(np.int64)


def _whole(store: TokenStore, layout: Layout, order: np.ndarray, how: How) -> tuple[np.ndarray, np.ndarray]:
    """Documents cut off after `sequence` tokens, those with nothing to learn left out; one or several a window."""
    fragments = _cut_off(store, order, layout.sequence)
    fragments = fragments[_teaches(store, fragments)]
    if how == "single":
        return fragments, np.arange(len(fragments) + 1, dtype=np.int64)
    members, windows = best_fit(fragments[:, 1], layout.sequence)
    return fragments[members], windows


def _pairs(store: TokenStore, layout: Layout, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    fragments = _sides(store, order, layout.sequence)
    both = _teaches(store, fragments).reshape(-1, 2).all(1)
    fragments = fragments.reshape(-1, 2, 3)[both].reshape(-1, 3)
    return fragments, np.arange(0, len(fragments) + 1, 2, dtype=np.int64)


def _sides(store: TokenStore, documents: np.ndarray, sequence: int) -> np.ndarray:
    """Fragments of the chosen and the rejected answer of each document, in turn, each cut off."""
    seconds = np.zeros(0, dtype=np.int64) if store.seconds is None else store.seconds[documents]
    first, end = store.offsets[documents], store.offsets[documents + 1]
    begins = np.stack([first, first + seconds], axis=1).ravel()
    lengths = np.stack([seconds, end - first - seconds], axis=1).ravel()
    kept = np.minimum(lengths, sequence)
    return np.stack([begins, kept, kept == lengths], axis=1).astype(np.int64)


def _cut_off(store: TokenStore, documents: np.ndarray, sequence: int) -> np.ndarray:
    first = store.offsets[documents]
    lengths = store.offsets[documents + 1] - first
    kept = np.minimum(lengths, sequence)
    return np.stack([first, kept, kept == lengths], axis=1).astype(np.int64)


def _teaches(store: TokenStore, fragments: np.ndarray) -> np.ndarray:
    """bool: whether anything of a fragment is learnt. Of a text without a mask everything is, however short."""
    if not store.masks:
        return np.ones(len(fragments), dtype=bool)
    return store.learnt_counts(fragments[:, 0] + 1, fragments[:, 1] - fragments[:, 2]) > 0


@dataclass(frozen=True)
class Losses:
    """What a layout cuts off or leaves out. dropped: documents of which nothing learnt would be left."""

    documents: int
    tokens: int
    dropped: int = 0


def losses(store: TokenStore, layout: Layout) -> Losses:
    """Documents longer than a window: cut off, or left out; nothing of either where documents may span windows."""
    if layout.how(store.manifest.kind) == "packed":
        return Losses(0, 0)
    documents = store.documents(layout.split)
    if store.seconds is not None:
        return _losses_of_pairs(store, documents, layout.sequence)
    teaches = _teaches(store, _cut_off(store, documents, layout.sequence))
    over = (np.diff(store.offsets)[documents] - layout.sequence)[teaches]
    return Losses(int((over > 0).sum()), int(over[over > 0].sum()), int((~teaches).sum()))


def _losses_of_pairs(store: TokenStore, documents: np.ndarray, sequence: int) -> Losses:
    whole = _sides(store, documents, 2**62)[:, 1].reshape(-1, 2)
    teaches = _teaches(store, _sides(store, documents, sequence)).reshape(-1, 2).all(1)
    over = np.maximum(whole - sequence, 0)[teaches]
    return Losses(int((over > 0).any(1).sum()), int(over.sum()), int((~teaches).sum()))
