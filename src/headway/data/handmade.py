"""A token store from token arrays that are at hand: for certify, which makes the user's data small, and for tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headway.data.assemble import save_array, write_manifest
from headway.data.manifest import FORMAT, TEXT_FORMAT, Kind, TokenizerRecord


@dataclass(frozen=True)
class Material:
    """What a store is made of.

    documents: token ids, each with its begin and end tokens, below 65,536. learnt: of chats, uint8 beside each
    document, 1 where a token is learnt. classes: of labelled texts, each document's number among `labels`; or, of texts
    with any number of labels, `held`: the numbers of each. seconds: of preferences, where in each document the rejected
    answer begins; `learnt` is beside them too.
    """

    documents: Sequence[np.ndarray]
    learnt: Sequence[np.ndarray] = ()
    classes: Sequence[int] = ()
    labels: tuple[str, ...] = ()
    held: Sequence[Sequence[int]] = ()
    seconds: Sequence[int] = ()

    @property
    def kind(self) -> Kind:
        if self.seconds:
            return "preference"
        return "chat" if self.learnt else "labelled" if self.labels else "text"

    @property
    def tokens(self) -> int:
        return sum(len(document) for document in self.documents)


def write_store(folder: Path, material: Material, tokenizer: TokenizerRecord, *, held_out: int = 0) -> Path:
    """Write a complete store in `folder`; the last `held_out` documents are the held-out split."""
    folder.mkdir(parents=True)
    documents, kind = material.documents, material.kind
    lengths = np.array([len(document) for document in documents], dtype="<i8")
    split = (np.arange(len(documents)) >= len(documents) - held_out).astype("u1")
    tokens = np.concatenate(list(documents)).astype("<u2")
    arrays = {
        "offsets": np.concatenate([[0], np.cumsum(lengths)]).astype("<i8"),
        "bytes": lengths,
        "source": np.zeros(len(documents), dtype="<u2"),
        "split": split,
    }
    manifest: dict[str, Any] = {}
    if kind == "preference":
        arrays["second"] = np.array(material.seconds, dtype="<i8")
    if kind in ("chat", "preference"):
        manifest["masks"] = [save_array(folder / "mask-00000.bin", np.concatenate(list(material.learnt)), bare=True)]
    if kind == "labelled":
        arrays["label"] = np.array(material.classes or range(len(documents)), dtype="<i4")
        if material.held:
            arrays["label_members"] = np.array([number for part in material.held for number in part], dtype="<i4")
            arrays["label_ends"] = np.cumsum([len(part) for part in material.held], dtype="<i8")
        manifest["labels"] = list(material.labels)
    if kind != "text":
        manifest = {"kind": kind, "masks": [], "labels": [], **manifest}
    manifest |= {
        "format": TEXT_FORMAT if kind == "text" else FORMAT,
        "dtype": "<u2",
        "tokens": [save_array(folder / "tokens-00000.bin", tokens, bare=True)],
        "arrays": {name: save_array(folder / f"{name}.npy", array) for name, array in arrays.items()},
        "train": _counts(lengths[split == 0]),
        "eval": _counts(lengths[split == 1]),
        "tokenizer": tokenizer.model_dump(),
        "eval_gzip_bytes": 0,
        "eval_gzip_of_bytes": 0,
        "skipped": {},
        "skipped_at": {},
        "repaired": 0,
        "notes": [],
        "settings": {},
        "seconds": 0.0,
        "key": "",
        "raw_sha256": "",
    }
    write_manifest(folder, manifest)
    return folder


def _counts(lengths: np.ndarray) -> dict[str, int]:
    return {"documents": len(lengths), "tokens": int(lengths.sum()), "bytes": int(lengths.sum())}
