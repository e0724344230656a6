"""How many tokens of each source were read: a function of the position, like the order of the samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headway.data.arrays import TokenStore
from headway.data.mixing import epoch_counts
from headway.data.order import windows_at
from headway.data.packing import Index

_AT_ONCE = 2**16  # positions


def mixture_notes(store: TokenStore, index: Index, weights: Sequence[float]) -> tuple[str, ...]:
    """How often an epoch reads each source, in words; () without weights."""
    if index.mixture is None:
        return ()
    counts = np.bincount(window_sources(store, index), minlength=len(weights))
    wanted = epoch_counts(counts.tolist(), weights)
    total = sum(wanted)
    return tuple(
        f"source {number + 1} of {len(weights)}: {share / total:.1%} of the windows, "
        f"read {share / count:.3g} times an epoch"
        for number, (share, count) in enumerate(zip(wanted, counts.tolist(), strict=True))
    )


def window_sources(store: TokenStore, index: Index) -> np.ndarray:
    """The source of each window, by its first document."""
    starts = index.fragments[index.windows[:-1], 0]
    return store.sources[np.searchsorted(store.offsets, starts, side="right") - 1]


class Ledger:
    """Tokens read of each source, exactly, at a position; counted on from where it was last asked for."""

    def __init__(self, store: TokenStore, index: Index, seed: int, sources: int):
        self._index, self._seed = index, seed
        documents = np.searchsorted(store.offsets, index.fragments[:, 0], side="right") - 1
        of = store.sources[documents].astype(np.int64)
        # int64 [sources, windows]: tokens of each source in each window.
        sums = [np.concatenate([[0], np.cumsum(index.fragments[:, 1] * (of == n))]) for n in range(sources)]
        self._tokens = np.stack([np.diff(total[index.windows]) for total in sums])
        self._position = 0
        self._counted = np.zeros(sources, dtype=np.int64)

    def at(self, position: int) -> list[int]:
        """Tokens of each source among the first `position` samples of the run."""
        if position < self._position:
            self._position, self._counted = 0, np.zeros_like(self._counted)
        while self._position < position:
            end = min(position, self._position + _AT_ONCE)
            windows = windows_at(self._seed, self._position, end, len(self._index))
            if self._index.mixture is not None:
                windows = self._index.mixture[windows]
            self._counted = self._counted + self._tokens[:, windows].sum(axis=1)
            self._position = end
        return self._counted.tolist()
