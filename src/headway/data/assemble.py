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
from headway.data.labels import Labels
from headway.data.manifest import FORMAT, MANIFEST, TEXT_FORMAT, content_hash
from headway.data.reading import Reading
from headway.data.shapes import SETS
from headway.data.work import SHOWN_PLACES, TaskResult, WorkSpec, task_file
from headway.errors import DataError, Problem

SHARD_BYTES = 2**30
_COPY_BYTES = 2**24


@dataclass
class Assembled:
    """The store's parts on the disk, and what the tasks said."""

    tokens: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    masks: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    labels: Labels = field(default_factory=Labels)
    arrays: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    documents: np.ndarray = field(default_factory=lambda: np.empty(0))
    is_eval: np.ndarray = field(default_factory=lambda: np.empty(0))
    skipped: Counter[str] = field(default_factory=Counter[str])
    skipped_at: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    repaired: int = 0
    gzip_of_bytes: int = 0
    gzip_bytes: int = 0
    spares: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    remarks: Counter[str] = field(default_factory=Counter[str])

    def count(self, result: TaskResult) -> None:
        self.skipped.update(result.skipped)
        for reason, places in result.skipped_at.items():
            known = self.skipped_at.setdefault(reason, [])
            known += places[: SHOWN_PLACES - len(known)]
        self.remarks.update(result.remarks)
        self.repaired += result.repaired
        self.gzip_of_bytes += result.gzip_of_bytes
        self.gzip_bytes += result.gzip_bytes
        if result.spare:
            self.spares.append(result.spare)


def assemble(spec: WorkSpec, results: Iterable[TaskResult], folder: Path) -> Assembled:
    """Append each task's tokens as it comes, in order, then write the arrays over all documents.

    Raises:
        DataError: with the problems of the tasks that have any, where no document is left to train on, or of labels
            that cannot be learnt.
    """
    done = Assembled()
    _append_tasks(spec, results, folder, done)
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
    if Reading(**spec.reading).kind == "labelled":
        several = any(source["shape"] == SETS for _, source in spec.sources)
        settle = done.labels.settle_sets if several else done.labels.settle
        arrays |= settle(done.documents["label"], done.is_eval)
    if Reading(**spec.reading).kind == "preference":
        arrays["second"] = done.documents["second"].astype("<i8")
    done.arrays = {name: save_array(folder / f"{name}.npy", array) for name, array in arrays.items()}
    return done


def _append_tasks(spec: WorkSpec, results: Iterable[TaskResult], folder: Path, done: Assembled) -> None:
    """Fill `done` with the tasks' files and counts; the label of a document becomes a number over all tasks."""
    tables: list[np.ndarray] = []
    with (
        _ArrayWriter(folder, "tokens", np.dtype(spec.dtype)) as tokens,
        _ArrayWriter(folder, "mask", np.dtype("u1")) as masks,
    ):
        for result in results:
            if result.problems:
                raise DataError(problems=result.problems)
            documents = task_file(spec, result.number, "documents.npy")
            table = np.load(documents)
            table["label"] = done.labels.join(result.labels, table["label"])
            tables.append(table)
            for kind, writer in (("tokens", tokens), ("learnt", masks)):
                path = task_file(spec, result.number, kind)
                if path.is_file():
                    writer.append(path)
                    path.unlink()
            documents.unlink()
            done.count(result)
            if tokens.size_bytes >= SHARD_BYTES:  # a task never straddles two files, nor do its masks
                tokens.finish()
                masks.finish()
        tokens.finish()
        masks.finish()
        done.tokens, done.masks = tokens.files, masks.files
    done.documents = np.concatenate(tables) if tables else np.empty(0, dtype=np.int64)


def _nothing_left(done: Assembled, rule: str) -> Problem:
    reasons = ", ".join(f"{count} {reason}" for reason, count in done.skipped.most_common())
    fix = "check data.train.paths and text_key"
    return Problem("data.train", f"{rule} ({reasons or 'no records'} left out)", fix=fix)


class _ArrayWriter:
    """Files `stem`-NNNNN.bin, hashed while they are written."""

    def __init__(self, folder: Path, stem: str, dtype: np.dtype):
        self.folder, self.stem, self.dtype = folder, stem, dtype
        self.files: list[dict[str, Any]] = []
        self.size_bytes = 0  # of the file in hand
        self._out: BinaryIO | None = None
        self._hash = hashlib.sha256()

    def __enter__(self) -> _ArrayWriter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._out is not None:
            self._out.close()

    @property
    def _name(self) -> str:
        return f"{self.stem}-{len(self.files):05d}.bin"

    def append(self, path: Path) -> None:
        if path.stat().st_size == 0:
            return
        if self._out is None:
            self._out = (self.folder / self._name).open("wb")
            self._hash, self.size_bytes = hashlib.sha256(), 0
        with path.open("rb") as source:
            while block := source.read(_COPY_BYTES):
                self._out.write(block)
                self._hash.update(block)
                self.size_bytes += len(block)

    def finish(self) -> None:
        """Close the file in hand, if any."""
        if self._out is not None:
            _settle(self._out)
            self._out.close()
            self._out = None
            size, digest = self.size_bytes, self._hash.hexdigest()
            items = size // self.dtype.itemsize
            self.files.append({"file": self._name, "items": items, "size_bytes": size, "sha256": digest})
            self.size_bytes = 0


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
    notes += [f"{count} documents {remark}" for remark, count in done.remarks.items()]
    kind = Reading(**spec.reading).kind
    more = {"kind": kind, "masks": done.masks, "labels": list(done.labels.names)} if kind != "text" else {}
    return more | {
        "format": TEXT_FORMAT if kind == "text" else FORMAT,
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
