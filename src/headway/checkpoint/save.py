"""Save a checkpoint with all ranks: slices by every rank, the manifest last, then retention.

Nothing of an earlier checkpoint is touched before the new one is complete. A rank that fails makes all ranks raise
the same CheckpointError, and what was written of the new checkpoint is removed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from headway.checkpoint.layout import (
    STATE,
    FileEntry,
    Manifest,
    TrainingState,
    checkpoint_name,
    checkpoint_names,
    encode_manifest,
    read_manifest,
    to_json,
)
from headway.checkpoint.parts import PART_BYTES, Target, write_object, write_rank
from headway.checkpoint.random_state import RandomState
from headway.checkpoint.ranks import ALONE, Ranks, together
from headway.checkpoint.reader import read_rows, require_coverage
from headway.checkpoint.retain import remove_leftovers, retain
from headway.checkpoint.seam import CheckpointStore
from headway.checkpoint.store import no_room
from headway.errors import CheckpointError
from headway.parallel.seam import Slice
from headway.run.paths import CHECKPOINT_MANIFEST


@dataclass(frozen=True)
class SaveJob:
    """What to save; `state`, `expected_bytes`, `keep`, `protect` and `documents` are equal on all ranks.

    slices: this rank's own, consumed once. They may be views of live state: nothing may change it until the save
        returns. (A background save hands over copies, and an exchange over its own process group.)
    expected_bytes: of the whole checkpoint, for the check of free space; 0 takes the newest one's size.
    keep: newest checkpoints that stay, this one included.
    protect: names that stay in any case, such as the one that training resumed from.
    documents: further small files that rank 0 puts in: {"plan.json": ..., "record.json": ...}.
    """

    state: TrainingState
    slices: Iterator[Slice]
    random_state: RandomState | None
    keep: int
    expected_bytes: int = 0
    protect: frozenset[str] = frozenset()
    documents: Mapping[str, bytes] = field(default_factory=dict)
    part_bytes: int = PART_BYTES


@dataclass(frozen=True)
class Saved:
    """A finished save, equal on all ranks but for `notices` (rank 0: what retention could not remove)."""

    name: str
    step: int
    size_bytes: int
    seconds: float
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Place:
    name: str
    serial: int


def save_checkpoint(store: CheckpointStore, job: SaveJob, ranks: Ranks = ALONE) -> Saved:
    """Write one complete checkpoint, then remove those beyond `keep`. All ranks call it together.

    Raises:
        CheckpointError: on every rank, with the same text. Earlier checkpoints stand.
    """
    started = time.perf_counter()
    what = f"saving the checkpoint of step {job.state.step}"
    place = together(ranks, what, lambda: _prepare(store, job) if ranks.rank == 0 else None)[0]
    if place is None:
        raise CheckpointError(f"{what}: rank 0 named no place; the ranks disagree on their numbers")
    target = Target(store, place.name, ranks.rank, job.part_bytes)
    try:
        written = together(ranks, what, lambda: write_rank(target, job.slices, job.random_state))
        files = [entry for entries in written for entry in entries]
        sizes = together(ranks, what, lambda: _commit(store, job, place, files) if ranks.rank == 0 else 0)
    except CheckpointError:
        if ranks.rank == 0:
            _discard(store, place.name)
        raise
    notices = retain(store, place.name, job.keep, job.protect) if ranks.rank == 0 else []
    return Saved(place.name, job.state.step, sizes[0], time.perf_counter() - started, tuple(notices))


def _prepare(store: CheckpointStore, job: SaveJob) -> _Place:
    """Clear what earlier, killed saves left, make sure there is room, and choose a free name."""
    remove_leftovers(store)
    names = checkpoint_names(store)
    manifests: list[Manifest] = []
    for name in names:
        try:
            manifests.append(read_manifest(store, name))
        except CheckpointError:
            continue  # damaged: loading names it; it must not stop a new save
    newest = max(manifests, key=lambda manifest: manifest.serial, default=None)
    needed_bytes = job.expected_bytes or (newest.size_bytes if newest else 0)
    free_bytes = store.free_bytes()
    if free_bytes is not None and needed_bytes > free_bytes:
        folder = store.staging().parent
        raise no_room(f"the checkpoint of step {job.state.step}", folder, needed_bytes, free_bytes)
    attempt = 1
    while checkpoint_name(job.state.step, attempt) in names:
        attempt += 1
    return _Place(checkpoint_name(job.state.step, attempt), newest.serial + 1 if newest else 1)


def _commit(store: CheckpointStore, job: SaveJob, place: _Place, files: list[FileEntry]) -> int:
    """Rank 0: prove that the slices cover every parameter, write the documents and, last, the manifest."""
    ranks = [entry.name for entry in files if entry.name.endswith(".json")]
    require_coverage(read_rows(store, place.name, ranks))
    documents = {STATE: to_json(asdict(job.state)), **job.documents}
    entries = [*files, *(write_object(store, place.name, name, content) for name, content in documents.items())]
    manifest = Manifest(job.state.step, place.serial, len(ranks), time.time(), tuple(entries))
    content = encode_manifest(manifest)
    store.write(f"{place.name}/{CHECKPOINT_MANIFEST}", content)
    return manifest.size_bytes + len(content)


def _discard(store: CheckpointStore, name: str) -> None:
    try:
        store.delete(f"{name}/{CHECKPOINT_MANIFEST}")
        store.delete(f"{name}/")
    except CheckpointError:
        pass  # it has no manifest, so it counts for nothing; the next save removes it
    for path in _files(store.staging()):
        path.unlink(missing_ok=True)


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_file()]
