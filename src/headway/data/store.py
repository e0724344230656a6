"""The way in to token stores: one store (TokenStore), or the windows of one of its splits (open_split)."""

from __future__ import annotations

from pathlib import Path

from headway.data.arrays import Split, TokenStore, is_complete
from headway.data.packing import Layout, open_windows
from headway.data.seam import SampleSource

__all__ = ["Split", "TokenStore", "is_complete", "open_split"]


def open_split(
    store: Path, split: Split, sequence: int, packing: bool, weights: tuple[float, ...] = ()
) -> SampleSource:
    """The windows of one split, of at most `sequence` tokens each; see headway.data.packing.

    weights: of the training sources, where they are mixed by weight; held-out data is read as it is.
    """
    return open_windows(TokenStore(store), Layout(split, sequence, packing, weights if split == "train" else ()))
