"""The tasks' files, in order, to the arrays and the manifest of a token store."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from headway.data.holdout import held_out
from headway.data.manifest import FORMAT, MANIFEST, content_hash
from headway.data.work import SHOWN_PLACES, TaskResult, WorkSpec, task_file
from headway.errors import DataError, Problem

SHARD_BYTES = 2**30
_COPY_BYTES = 2**24


@dataclass
class Assembled:
    """The store's parts on the disk, and what the tasks said."""

    tokens: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    arrays: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    documents: np.ndarray = field(default_factory=lambda: np.empty(0))
    is_eval: np.ndarray = field(default_factory=lambda: np.empty(0))
    skipped: Counter[str] = field(default_factory=Counter[str])
    skipped_at: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    repaired: int = 0
    gzip_of_bytes: int = 0
    gzip_bytes: int = 0
    spares: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])

    def count(self, result: TaskResult) -> None:
        self.skipped.update(result.skipped)
        for reason, places in result.skipped_at.items():
            known = self.skipped_at.setdefault(reason, [])
            known += places[: SHOWN_PLACES - len(known)]
        self.repaired += result.repaired
        self.gzip_of_bytes += result.gzip_of_bytes
        self.gzip_bytes += result.gzip_bytes
        if result.spare:
            self.spares.append(result.spare)


def assemble(spec: WorkSpec, results: Iterable[TaskResult], folder: Path) -> Assembled:
    """Append each task's tokens as it comes, in order, then write the arrays over all documents.

    Raises:
        DataError: with the problems of the tasks that have any, or where no document is left to train on.
    """
    done = Assembled()
    tables: list[np.ndarray] = []
    with _TokenWriter(folder, np.dtype(spec.dtype)) as writer:
        for result in results:
            if result.problems:
                raise DataError(problems=result.problems)
            tokens, documents = (task_file(spec, result.number, kind) for kind in ("tokens", "documents.npy"))
            tables.append(np.load(documents))
            writer.append(tokens)
            tokens.unlink()
            documents.unlink()
            done.count(result)
        writer.finish()
        done.tokens = writer.files
    done.documents = np.concatenate(tables) if tables else np.empty(0, dtype=np.int64)
    if not len(done.documents):
        raise DataError(problems=[_nothing_left(done, "holds no document")])
    of_eval_source = done.documents["source_is_eval"]
    done.is_eval = of_eval_source.copy()
    done.is_eval[~of_eval_source] = held_out(done.documents["hash"][~of_eval_source], spec.eval_share)
    if done.is_eval.all():
        raise DataError(problems=[_nothing_left(done, "leaves no document to train on")])
    arrays = {
        "offsets": np.concatenate([[0], np.cumsum(done.documents["tokens"])]).astype("<i8"),
        "bytes": done.documents["bytes"].astype("<i8"),
        "source": done.documents["source"].astype("<u2"),
        "split": done.is_eval.astype("u1"),
    }
    done.arrays = {name: save_array(folder / f"{name}.npy", array) for name, array in arrays.items()}
    return done


def _nothing_left(done: Assembled, rule: str) -> Problem:
    reasons = ", ".join(f"{count} {reason}" for reason, count in done.skipped.most_common())
    fix = "check data.train.paths and text_key"
    return Problem("data.train", f"{rule} ({reasons or 'no records'} left out)", fix=fix)


class _TokenWriter:
    """Token files of about SHARD_BYTES, hashed while they are written; a task never straddles two."""

    def __init__(self, folder: Path, dtype: np.dtype):
        self.folder, self.dtype = folder, dtype
        self.files: list[dict[str, Any]] = []
        self._out: BinaryIO | None = None
        self._hash = hashlib.sha256()
        self._size = 0

    def __enter__(self) -> _TokenWriter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._out is not None:
            self._out.close()

    @property
    def _name(self) -> str:
        return f"tokens-{len(self.files):05d}.bin"

    def append(self, path: Path) -> None:
        if path.stat().st_size == 0:
            return
        if self._out is None:
            self._out = (self.folder / self._name).open("wb")
            self._hash, self._size = hashlib.sha256(), 0
        with path.open("rb") as source:
            while block := source.read(_COPY_BYTES):
                self._out.write(block)
                self._hash.update(block)
                self._size += len(block)
        if self._size >= SHARD_BYTES:
            self.finish()

    def finish(self) -> None:
        """Close the file in hand, if any."""
        if self._out is not None:
            _settle(self._out)
            self._out.close()
            self._out = None
            items, digest = self._size // self.dtype.itemsize, self._hash.hexdigest()
            self.files.append({"file": self._name, "items": items, "size_bytes": self._size, "sha256": digest})


def _settle(out: BinaryIO) -> None:
    """On the disk before the manifest: a power cut must not leave a manifest over empty files."""
    out.flush()
    os.fsync(out.fileno())


def save_array(path: Path, array: np.ndarray, *, bare: bool = False) -> dict[str, Any]:
    """Write an array to the disk, its content alone if `bare`; its entry in the manifest."""
    content = io.BytesIO()
    if bare:
        content.write(array.tobytes())
    else:
        np.save(content, array)
    raw = content.getvalue()
    with path.open("wb") as out:
        out.write(raw)
        _settle(out)
    return {"file": path.name, "items": len(array), "size_bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}


def fill_manifest(done: Assembled, spec: WorkSpec) -> dict[str, Any]:
    """Everything in the manifest that follows from the arrays and the tasks."""
    held, sample_bytes, sample_gzip = done.documents[done.is_eval], done.gzip_of_bytes, done.gzip_bytes
    if len(held) and not sample_bytes and done.spares:
        _, sample_bytes, sample_gzip = min(done.spares)
    eval_bytes = int(held["bytes"].sum())
    notes: list[str] = []
    if spec.eval_share and not len(held):
        notes.append("nothing is held out: there is one document only (options.split makes several of one text file)")
    if sample_bytes and sample_bytes < eval_bytes:
        notes.append(f"gzip -9 was measured on {sample_bytes} of {eval_bytes} held-out bytes and scaled up")
    if done.repaired:
        notes.append(f"{done.repaired} documents held lone surrogates, which are no characters: now U+FFFD")
    return {
        "format": FORMAT,
        "dtype": spec.dtype,
        "tokens": done.tokens,
        "arrays": done.arrays,
        "train": _counts(done.documents[~done.is_eval]),
        "eval": _counts(held),
        "eval_gzip_bytes": round(sample_gzip * eval_bytes / sample_bytes) if sample_bytes else 0,
        "eval_gzip_of_bytes": min(sample_bytes, eval_bytes),
        "skipped": dict(done.skipped),
        "skipped_at": done.skipped_at,
        "repaired": done.repaired,
        "notes": notes,
    }


def _counts(documents: np.ndarray) -> dict[str, int]:
    tokens, size = int(documents["tokens"].sum()), int(documents["bytes"].sum())
    return {"documents": len(documents), "tokens": tokens, "bytes": size}


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Complete the store: its hash, then the manifest, then nothing more."""
    for leftover in ("work.json", "workers.log"):
        (folder / leftover).unlink(missing_ok=True)
    manifest = manifest | {"hash": content_hash(manifest)}
    with (folder / MANIFEST).open("wb") as out:
        out.write(json.dumps(manifest, indent=1).encode())
        _settle(out)
