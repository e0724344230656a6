"""Read any run of any stored state, whatever strategy and number of ranks wrote it, without loading whole files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from headway.checkpoint.layout import CheckpointRef, TrainingState, index_name, read_state
from headway.checkpoint.parts import StoredSlice
from headway.checkpoint.random_state import RandomState, decode_random_state
from headway.checkpoint.seam import CheckpointStore
from headway.errors import CheckpointError

_HASH_ELEMENTS = 16 * 1024**2  # read at once while hashing: 64 MiB of fp32

Rows = dict[tuple[str, str], list[StoredSlice]]  # (name, kind) -> its slices by offset


def _read_index(store: CheckpointStore, key: str) -> dict[str, Any]:
    try:
        return json.loads(store.read(key).read_bytes())
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{key}: not a readable index ({error})") from error


def read_rows(store: CheckpointStore, folder: str, indexes: Iterable[str]) -> Rows:
    """The index rows of all ranks, by parameter and kind, sorted by offset."""
    rows: Rows = {}
    for name in indexes:
        for raw in _read_index(store, f"{folder}/{name}")["slices"]:
            row = StoredSlice(**{**raw, "shape": tuple(raw["shape"])})
            rows.setdefault((row.name, row.kind), []).append(row)
    for slices in rows.values():
        slices.sort(key=lambda row: (row.offset, -row.length))
    return rows


def require_coverage(rows: Rows) -> None:
    """Raises CheckpointError naming each parameter whose slices leave a gap or contradict each other."""
    problems: list[str] = []
    for (name, kind), slices in rows.items():
        first = slices[0]
        if any((row.shape, row.dtype) != (first.shape, first.dtype) for row in slices):
            problems.append(f"{name} ({kind}): the ranks gave different shapes or types")
            continue
        reached = 0
        for row in slices:
            if row.offset > reached:
                break
            reached = max(reached, row.offset + row.length)
        total = torch.Size(first.shape).numel()
        if reached < total:
            problems.append(f"{name} ({kind}): element {reached} of {total} is in no rank's slices")
    if problems:
        more = f"\nand {len(problems) - 10} more" if len(problems) > 10 else ""
        raise CheckpointError("the slices do not cover the state:\n" + "\n".join(problems[:10]) + more)


class StoredState:
    """A complete checkpoint, open for reading (the SliceReader seam). Files are memory-mapped when first needed."""

    def __init__(self, store: CheckpointStore, ref: CheckpointRef):
        self.ref = ref
        self.state: TrainingState = read_state(store, ref.name)
        self.scalars: dict[str, float] = dict(self.state.scalars)
        self._store = store
        self._world = ref.manifest.world
        self._rows = read_rows(store, ref.name, map(index_name, range(self._world)))
        require_coverage(self._rows)
        self._kinds: dict[str, set[str]] = {}
        for name, kind in self._rows:
            self._kinds.setdefault(name, set()).add(kind)
        self._open: dict[str, Any] = {}

    def __enter__(self) -> StoredState:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the files; tensors already read stay valid."""
        self._open.clear()

    def names(self) -> list[str]:
        """Every stored parameter, in the order in which it was written."""
        return list(self._kinds)

    def kinds(self, name: str) -> set[str]:
        """The kinds stored for this parameter; empty if the parameter is unknown."""
        return set(self._kinds.get(name, ()))

    def shape(self, name: str) -> tuple[int, ...]:
        """The global shape of a parameter. Raises CheckpointError if it is unknown."""
        kinds = self._kinds.get(name)
        if not kinds:
            raise CheckpointError(f"{self.ref.name} holds no parameter {name!r}")
        return self._slices(name, min(kinds))[0].shape

    def dtype(self, name: str, kind: str) -> torch.dtype:
        """The type in which it is stored. Raises CheckpointError if it is not."""
        return getattr(torch, self._slices(name, kind)[0].dtype)

    def read(self, name: str, kind: str, offset: int, length: int) -> torch.Tensor:
        """Elements [offset, offset + length) of the flattened state: 1-D on the host, as stored.

        Where one stored slice holds them all, the tensor is a private map of the file: nothing is read until it is
        used, and writing to it does not change the checkpoint.

        Raises:
            CheckpointError: the parameter, the kind or the range is not stored, or a file is damaged.
        """
        slices = self._slices(name, kind)
        end = offset + length
        total = torch.Size(slices[0].shape).numel()
        if not 0 <= offset <= end <= total:
            raise CheckpointError(f"{name} ({kind}) has {total} elements; asked for {offset} to {end}")
        whole = next((row for row in slices if row.offset <= offset and end <= row.offset + row.length), None)
        if whole is not None and length:
            return self._load(whole, offset - whole.offset, end - whole.offset)
        result = torch.empty(length, dtype=self.dtype(name, kind))
        reached = offset
        for row in slices:
            if row.offset <= reached < row.offset + row.length and reached < end:
                until = min(end, row.offset + row.length)
                result[reached - offset : until - offset] = self._load(row, reached - row.offset, until - row.offset)
                reached = until
        return result

    def document(self, name: str) -> dict[str, Any] | None:
        """A JSON document that stands beside the slices; None where the checkpoint has none of this name."""
        if name not in {entry.name for entry in self.ref.manifest.files}:
            return None
        return _read_index(self._store, f"{self.ref.name}/{name}")

    def random_state(self, rank: int) -> RandomState | None:
        """The random states that this rank saved; None for a rank that did not exist or saved none."""
        if rank >= self._world:
            return None
        data = _read_index(self._store, f"{self.ref.name}/{index_name(rank)}")["random"]
        return None if data is None else decode_random_state(data)

    def _slices(self, name: str, kind: str) -> list[StoredSlice]:
        slices = self._rows.get((name, kind))
        if slices is None:
            stored = ", ".join(sorted(self.kinds(name))) or "nothing"
            raise CheckpointError(f"{self.ref.name} holds no {kind!r} of {name!r}; stored for it: {stored}")
        return slices

    def _load(self, row: StoredSlice, start: int, stop: int) -> torch.Tensor:
        try:
            if row.file not in self._open:
                path = self._store.read(f"{self.ref.name}/{row.file}")
                self._open[row.file] = safe_open(path, framework="pt")
            return self._open[row.file].get_slice(row.key)[start:stop]
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{self.ref.name}/{row.file}: {row.key}: {error}") from error


def state_hash(reader: StoredState) -> dict[str, str]:
    """Parameter -> sha256 of its whole state: every kind with its type, shape and bytes, in the order of the kinds.

    Equal hashes mean equal state to the bit, whatever ranks and strategies wrote the two checkpoints.
    """
    return {name: _hash_parameter(reader, name) for name in reader.names()}


def _hash_parameter(reader: StoredState, name: str) -> str:
    digest = hashlib.sha256()
    shape = reader.shape(name)
    for kind in sorted(reader.kinds(name)):
        digest.update(f"{kind}|{reader.dtype(name, kind)}|{shape}\n".encode())
        for chunk in _chunks(reader, name, kind):
            digest.update(chunk.contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _chunks(reader: StoredState, name: str, kind: str) -> Iterator[torch.Tensor]:
    total = torch.Size(reader.shape(name)).numel()
    for offset in range(0, total, _HASH_ELEMENTS):
        yield reader.read(name, kind, offset, min(_HASH_ELEMENTS, total - offset))
