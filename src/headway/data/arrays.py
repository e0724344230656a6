"""The token store: a folder of memory-mapped arrays whose manifest, written last, says what they are.

    manifest.json        hashes, counts, settings; without it the folder is no store
    tokens-NNNNN.bin     token ids, little-endian uint16 or uint32; documents one after the other, never across files
    offsets.npy          int64 [documents + 1]: where each document begins, counted over all token files
    bytes.npy            int64 [documents]: UTF-8 bytes of its text
    source.npy           uint16 [documents]: which source it came from
    split.npy            uint8 [documents]: 0 train, 1 held out
    mask-NNNNN.bin       chats: uint8 beside each token of the file of that number, 1 where it is learnt
    second.npy           preferences: int64 [documents], where in its document the rejected answer begins
    label.npy            labelled texts: int32 [documents], a place in the manifest's labels; or, of texts with any
                         number of labels, the number of a set: of label_members.npy, what lies between the ends
                         of the set before it and its own in label_ends.npy
    index-*.npy          windows, made when first asked for (headway.data.packing)

A document is [begin] tokens [end], or a chat as its template renders it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import ValidationError

from headway.data.manifest import FORMATS, MANIFEST, ArrayFile, Manifest
from headway.errors import DataError

TRAIN, EVAL = 0, 1
Split = Literal["train", "eval"]


class TokenStore:
    """An open store; arrays are mapped when first used.

    Raises:
        DataError: the folder is absent, incomplete, damaged, or of a later format.
    """

    def __init__(self, path: Path):
        self.path = path
        self.manifest = _read_manifest(path)
        for file in self._files():
            found = path / file.file
            if not found.is_file() or found.stat().st_size != file.size_bytes:
                raise DataError(
                    f"token store {path} is damaged: {file.file} is absent or cut short",
                    fix=f"delete that folder and build it again (headway data build): {path}",
                )
        self.offsets = self._map("offsets")
        # Where each token file begins, counted over all of them.
        self.starts = np.cumsum([0] + [file.items for file in self.manifest.tokens])[:-1].tolist()
        self.shards = [self._map_bare(file, self.manifest.dtype) for file in self.manifest.tokens]
        # Beside each token file, 1 where a token is learnt; [] where all are.
        self.masks = [self._map_bare(file, "u1") for file in self.manifest.masks]
        self.labels = self._map("label") if "label" in self.manifest.arrays else None
        self.seconds = self._map("second") if "second" in self.manifest.arrays else None
        self.has_sets = "label_members" in self.manifest.arrays
        self._members = self._map("label_members") if self.has_sets else np.empty(0, dtype=np.int32)
        self._ends = self._map("label_ends") if self.has_sets else np.empty(0, dtype=np.int64)

    def _files(self) -> list[ArrayFile]:
        return [*self.manifest.tokens, *self.manifest.masks, *self.manifest.arrays.values()]

    def _map(self, name: str) -> np.ndarray:
        return np.asarray(np.load(self.path / self.manifest.arrays[name].file, mmap_mode="r"))

    def _map_bare(self, file: ArrayFile, dtype: str) -> np.ndarray:
        # A plain array over the mapping: slicing np.memmap itself costs microseconds.
        return np.asarray(np.memmap(self.path / file.file, dtype=dtype, mode="r"))

    def documents(self, split: Split) -> np.ndarray:
        """Numbers of the split's documents, int64, in stored order."""
        return np.flatnonzero(self._map("split") == (EVAL if split == "eval" else TRAIN))

    @property
    def sources(self) -> np.ndarray:
        """uint16 [documents]: the number of the source that each document came from."""
        return self._map("source")

    def document(self, number: int) -> np.ndarray:
        """Token ids of one document, with its begin and end tokens."""
        first, end = int(self.offsets[number]), int(self.offsets[number + 1])
        shard = int(np.searchsorted(self.starts, first, side="right")) - 1
        return self.shards[shard][first - self.starts[shard] : end - self.starts[shard]]

    def labels_of(self, number: int) -> np.ndarray:
        """int32: the labels of a document of a store with sets of labels."""
        if self.labels is None:
            return self._members[:0]
        which = int(self.labels[number])
        return self._members[int(self._ends[which - 1]) if which else 0 : int(self._ends[which])]

    def learnt(self, number: int) -> np.ndarray:
        """uint8, 1 where a token of the document is learnt."""
        first, end = int(self.offsets[number]), int(self.offsets[number + 1])
        if not self.masks:
            return np.ones(end - first, dtype=np.uint8)
        shard = int(np.searchsorted(self.starts, first, side="right")) - 1
        return self.masks[shard][first - self.starts[shard] : end - self.starts[shard]]

    def learnt_counts(self, first: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """int64: how many tokens of each run of `lengths` from token `first` on are learnt; no run crosses a file."""
        if not self.masks:
            return lengths
        counts = np.zeros(len(first), dtype=np.int64)
        shards = np.searchsorted(self.starts, first, side="right") - 1
        for number, mask in enumerate(self.masks):
            mine = np.flatnonzero((shards == number) & (lengths > 0))
            mine = mine[np.argsort(first[mine])]
            begin = first[mine] - self.starts[number]
            # reduceat sums from each border to the next: every second sum is a run's, the others are of the short gaps
            # between runs in order. One zero more ends the last run.
            borders = np.stack([begin, begin + lengths[mine]], axis=1).ravel()
            if len(mine):
                counts[mine] = np.add.reduceat(np.append(mask, 0), borders, dtype=np.int64)[::2]
        return counts

    def verify(self) -> list[str]:
        """Files whose content is not what the manifest says, read in full."""
        damaged: list[str] = []
        for file in self._files():
            with (self.path / file.file).open("rb") as content:
                if hashlib.file_digest(content, "sha256").hexdigest() != file.sha256:
                    damaged.append(file.file)
        return damaged


def is_complete(path: Path) -> bool:
    return (path / MANIFEST).is_file()


def _read_manifest(path: Path) -> Manifest:
    file = path / MANIFEST
    if not file.is_file():
        raise DataError(f"there is no complete token store at {path}", fix="build it: headway data build RUN.yaml")
    content = json.loads(file.read_text(encoding="utf-8"))
    if content.get("format") not in FORMATS:
        raise DataError(
            f"token store {path} has format {content.get('format')}, this version reads up to {max(FORMATS)}",
            fix="build it again with this version: headway data build RUN.yaml",
        )
    try:
        return Manifest.model_validate(content)
    except ValidationError as error:
        raise DataError(f"{file} is damaged: {error}", fix="delete the store and build it again") from error
