"""The token store: a folder of memory-mapped arrays whose manifest, written last, says what they are.

    manifest.json        hashes, counts, settings; without it the folder is no store
    tokens-NNNNN.bin     token ids, little-endian uint16 or uint32; documents one after the other, never across files
    offsets.npy          int64 [documents + 1]: where each document begins, counted over all token files
    bytes.npy            int64 [documents]: UTF-8 bytes of its text
    source.npy           uint16 [documents]: which source it came from
    split.npy            uint8 [documents]: 0 train, 1 held out
    index-*.npy          windows, made when first asked for (headway.data.packing)

A document is [begin] tokens [end]. Format 1 holds no loss mask; a later format may add arrays.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from headway.data.seam import SampleSource
from headway.errors import DataError

FORMAT = 1
MANIFEST = "manifest.json"
TRAIN, EVAL = 0, 1
Split = Literal["train", "eval"]


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ArrayFile(Part):
    file: str
    items: int
    size_bytes: int
    sha256: str


class TokenizerRecord(Part):
    path: str
    sha256: str
    vocab: int  # highest id plus one
    begin: int
    end: int


class Counts(Part):
    documents: int
    tokens: int  # begin and end tokens included
    bytes: int  # UTF-8, of the text


class Manifest(Part):
    """`hash` names the content (arrays and tokenizer), `key` what it was made from.

    eval_gzip_bytes: `gzip -9` of each held-out document alone, scaled up from eval_gzip_of_bytes of their text.
    skipped: reason -> count; skipped_at: the first places of each. repaired: documents in which lone surrogates became
    U+FFFD. seconds: what the build took.
    """

    format: int
    hash: str
    key: str
    raw_sha256: str
    tokenizer: TokenizerRecord
    dtype: Literal["<u2", "<u4"]
    tokens: tuple[ArrayFile, ...]
    arrays: dict[str, ArrayFile]
    train: Counts
    eval: Counts
    eval_gzip_bytes: int
    eval_gzip_of_bytes: int
    skipped: dict[str, int]
    skipped_at: dict[str, list[str]]
    repaired: int
    notes: tuple[str, ...]
    settings: dict[str, Any]
    seconds: float


def content_hash(manifest: dict[str, Any]) -> str:
    """sha256 over what the arrays hold and how they are to be read."""
    arrays = [file["sha256"] for file in manifest["tokens"]]
    arrays += [f"{name} {file['sha256']}" for name, file in sorted(manifest["arrays"].items())]
    tokenizer = manifest["tokenizer"]
    what = [manifest["format"], manifest["dtype"], tokenizer["sha256"], tokenizer["begin"], tokenizer["end"], arrays]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()


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
        self.shards = [self._map_tokens(file) for file in self.manifest.tokens]

    def _files(self) -> list[ArrayFile]:
        return [*self.manifest.tokens, *self.manifest.arrays.values()]

    def _map(self, name: str) -> np.ndarray:
        return np.asarray(np.load(self.path / self.manifest.arrays[name].file, mmap_mode="r"))

    def _map_tokens(self, file: ArrayFile) -> np.ndarray:
        # A plain array over the mapping: slicing np.memmap itself costs microseconds.
        return np.asarray(np.memmap(self.path / file.file, dtype=self.manifest.dtype, mode="r"))

    def documents(self, split: Split) -> np.ndarray:
        """Numbers of the split's documents, int64, in stored order."""
        return np.flatnonzero(self._map("split") == (EVAL if split == "eval" else TRAIN))

    def document(self, number: int) -> np.ndarray:
        """Token ids of one document, with its begin and end tokens."""
        first, end = int(self.offsets[number]), int(self.offsets[number + 1])
        shard = int(np.searchsorted(self.starts, first, side="right")) - 1
        return self.shards[shard][first - self.starts[shard] : end - self.starts[shard]]

    def document_bytes(self, split: Split) -> np.ndarray:
        """UTF-8 bytes of each of the split's documents."""
        return self._map("bytes")[self.documents(split)]

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
    if content.get("format") != FORMAT:
        raise DataError(
            f"token store {path} has format {content.get('format')}, this version reads {FORMAT}",
            fix="build it again with this version: headway data build RUN.yaml",
        )
    try:
        return Manifest.model_validate(content)
    except ValidationError as error:
        raise DataError(f"{file} is damaged: {error}", fix="delete the store and build it again") from error


def open_split(store: Path, split: Split, sequence: int, packing: bool) -> SampleSource:
    """The windows of one split, of at most `sequence` tokens each; see headway.data.packing."""
    from headway.data.packing import Layout, open_windows

    return open_windows(TokenStore(store), Layout(split, sequence, packing))
