"""One rank's share of a checkpoint: slices gathered into files of bounded size, and the index that finds them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from headway.checkpoint.layout import VERSION, FileEntry, crc32_of, crc32_of_file, index_name, part_name, to_json
from headway.checkpoint.random_state import RandomState, encode_random_state
from headway.checkpoint.seam import CheckpointStore
from headway.checkpoint.store import write_error
from headway.errors import CheckpointError
from headway.parallel.seam import Slice

# What a rank holds on the host at once when slices come from a GPU; on a CPU slices are views and cost nothing.
# Small enough that a part's checksum and the move to its place run beside the writing of the next.
PART_BYTES = 256 * 1024**2


@dataclass(frozen=True)
class StoredSlice:
    """One row of the index: where `length` elements of a parameter's flattened state lie."""

    name: str
    kind: str
    shape: tuple[int, ...]
    offset: int
    length: int
    dtype: str  # 'float32'
    file: str  # '' where length is 0
    key: str


@dataclass(frozen=True)
class Target:
    """Where a rank writes: the store, the checkpoint's folder in it, and the rank."""

    store: CheckpointStore
    folder: str
    rank: int
    part_bytes: int = PART_BYTES


def write_object(store: CheckpointStore, folder: str, name: str, content: bytes) -> FileEntry:
    """Store a small file and return its entry for the manifest."""
    store.write(f"{folder}/{name}", content)
    return FileEntry(name, len(content), crc32_of(content))


def write_rank(target: Target, slices: Iterator[Slice], random_state: RandomState | None) -> list[FileEntry]:
    """Write all slices of this rank, then its index. Memory: one part, and nothing where slices are host views.

    After an error the rest of `slices` is still consumed: a strategy may gather inside the iterator, and the other
    ranks would wait for this one for ever.

    Raises:
        CheckpointError: the medium failed (disk full), or the slices contradict each other.
    """
    rows: list[StoredSlice] = []
    try:
        with ThreadPoolExecutor(1) as background:
            pending: list[Future[FileEntry]] = []
            for part, tensors in enumerate(_parts(slices, target, rows)):
                name = part_name(target.rank, part)
                staged = _stage(target, name, tensors)
                pending.append(background.submit(_store, target, name, staged))
            files = [entry.result() for entry in pending]
    except Exception:
        for _ in slices:
            pass
        raise
    index = {
        "version": VERSION,
        "rank": target.rank,
        "slices": [asdict(row) for row in rows],
        "random": None if random_state is None else encode_random_state(random_state),
    }
    files.append(write_object(target.store, target.folder, index_name(target.rank), to_json(index)))
    return files


def _parts(slices: Iterator[Slice], target: Target, rows: list[StoredSlice]) -> Iterator[dict[str, torch.Tensor]]:
    """Group the pieces of all slices into dictionaries of at most `part_bytes`; appends their index rows."""
    tensors: dict[str, torch.Tensor] = {}
    held_bytes, part = 0, 0
    seen: set[str] = set()
    for item in slices:
        _check_slice(item)
        for offset, data in _pieces(item, target.part_bytes):
            if held_bytes and held_bytes + data.nbytes > target.part_bytes:
                yield tensors
                tensors, held_bytes, part = {}, 0, part + 1
            key = f"{item.name}|{item.kind}|{offset}"
            if key in seen:
                raise CheckpointError(f"rank {target.rank} gave {item.name} ({item.kind}) at offset {offset} twice")
            seen.add(key)
            file = part_name(target.rank, part) if data.numel() else ""
            dtype = str(data.dtype).removeprefix("torch.")
            rows.append(StoredSlice(item.name, item.kind, item.shape, offset, data.numel(), dtype, file, key))
            if data.numel():
                tensors[key] = data.detach().cpu()
                held_bytes += data.nbytes
    if tensors:
        yield tensors


def _pieces(item: Slice, part_bytes: int) -> Iterator[tuple[int, torch.Tensor]]:
    """The slice cut into runs that fit a part: (offset in the parameter, 1-D contiguous data)."""
    data = item.data.contiguous()
    length = max(1, part_bytes // data.element_size())
    for start in range(0, max(1, data.numel()), length):
        yield item.offset + start, data[start : start + length]


def _check_slice(item: Slice) -> None:
    total = torch.Size(item.shape).numel()
    if item.data.dim() != 1 or item.offset < 0 or item.offset + item.data.numel() > total:
        raise CheckpointError(
            f"{item.name} ({item.kind}): a slice at offset {item.offset} with shape {tuple(item.data.shape)} does not "
            f"lie in the flattened parameter of {total} elements"
        )


def _stage(target: Target, name: str, tensors: dict[str, torch.Tensor]) -> Path:
    """The part as a file in the store's staging folder."""
    staged = target.store.staging() / f"{target.folder}-{name}"
    try:
        save_file(tensors, staged, metadata={"format": "pt"})
    except Exception as error:
        staged.unlink(missing_ok=True)
        size_bytes = sum(tensor.nbytes for tensor in tensors.values())
        raise write_error(error, f"{target.folder}/{name}", staged.parent, size_bytes) from error
    return staged


def _store(target: Target, name: str, staged: Path) -> FileEntry:
    try:
        entry = FileEntry(name, staged.stat().st_size, crc32_of_file(staged))
        target.store.write(f"{target.folder}/{name}", staged)
    finally:
        staged.unlink(missing_ok=True)  # where it was not moved
    return entry
