"""What a token store says of itself: read by whoever opens it, written last by the builder."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

# Stores of plain text are written in format 1, which holds no masks or labels; both formats are read.
FORMAT, TEXT_FORMAT = 2, 1
FORMATS = (TEXT_FORMAT, FORMAT)
MANIFEST = "manifest.json"
Kind = Literal["text", "chat", "labelled", "preference"]


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
    U+FFFD. seconds: what the build took. kind: what a document is. masks: of a chat store, beside each token file, 1
    where a token is learnt. labels: of a labelled store, the names behind the array `label`. shapes: what the first
    records of each source were. library: what encoded the texts, with its version.
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
    kind: Kind = "text"
    masks: tuple[ArrayFile, ...] = ()
    labels: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    library: str = ""


def content_hash(manifest: dict[str, Any]) -> str:
    """sha256 over what the arrays hold and how they are to be read."""
    arrays = [file["sha256"] for file in manifest["tokens"]]
    arrays += [f"{name} {file['sha256']}" for name, file in sorted(manifest["arrays"].items())]
    tokenizer = manifest["tokenizer"]
    what = [manifest["format"], manifest["dtype"], tokenizer["sha256"], tokenizer["begin"], tokenizer["end"], arrays]
    if manifest["format"] != TEXT_FORMAT:
        what += [manifest["kind"], [file["sha256"] for file in manifest["masks"]], list(manifest["labels"])]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()
