"""What a checkpoint is made of: names, the manifest, and the training state that is not tensors.

    step-00000100/
        rank-00000-part-000.safetensors   slices of this rank; key "NAME|KIND|OFFSET"
        rank-00000.json                   index of its slices, its random states
        state.json                        step, position, counters, scalars, digests (rank 0)
        ...                               further documents of rank 0: census.json, plan.json, record.json, record.diff
        manifest.json                     every file with size and checksum: written last, makes it complete

Everything is safetensors or JSON. Checksums are CRC-32: they find damage, not malice, at 4 GB/s on one core where
sha256 reaches 1.4 (and 0.4 without SHA instructions), so that a full check costs less than reading the disk.
"""

from __future__ import annotations

import json
import mmap
import re
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headway.checkpoint.seam import CheckpointStore
from headway.errors import CheckpointError
from headway.run.paths import CHECKPOINT_MANIFEST

VERSION = 1
STATE = "state.json"
_NAME = re.compile(r"step-(\d{8,})(?:-(\d+))?")


def checkpoint_name(step: int, attempt: int = 1) -> str:
    """`step-00000100`; a second checkpoint of the same step, while the first still stands, is `step-00000100-2`."""
    return f"step-{step:08d}" + (f"-{attempt}" if attempt > 1 else "")


def step_of(name: str) -> int | None:
    """The step in a checkpoint's name; None for anything else."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def part_name(rank: int, part: int) -> str:
    return f"rank-{rank:05d}-part-{part:03d}.safetensors"


def index_name(rank: int) -> str:
    return f"rank-{rank:05d}.json"


@dataclass(frozen=True)
class FileEntry:
    """A file of a checkpoint as it was written."""

    name: str
    size_bytes: int
    crc32: str  # eight hexadecimal digits


@dataclass(frozen=True)
class TrainingState:
    """Where training stood, equal on all ranks: all that a resume needs besides slices and random states.

    position counts samples consumed; scalars come from the engine (optimizer step, loss scale).
    """

    step: int
    position: int
    tokens: int
    scalars: dict[str, float] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    plan_digest: str = ""
    certificate: str | None = None  # id of the certificate that held for this run


@dataclass(frozen=True)
class Manifest:
    """serial counts saves over the life of a run directory: the newest checkpoint has the highest, also after a
    resume from an older step, when its step is not the highest."""

    step: int
    serial: int
    world: int
    time: float  # unix seconds
    files: tuple[FileEntry, ...]

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.files)


@dataclass(frozen=True)
class CheckpointRef:
    """A complete checkpoint. notices name what was damaged or incomplete among newer ones and was passed over."""

    name: str
    manifest: Manifest
    notices: tuple[str, ...] = ()

    @property
    def step(self) -> int:
        return self.manifest.step


def to_json(value: Any) -> bytes:
    return (json.dumps(value, sort_keys=True, separators=(",", ":")) + "\n").encode()


def crc32_of(content: bytes) -> str:
    return f"{zlib.crc32(content):08x}"


def crc32_of_file(path: Path) -> str:
    """Through a memory map: no copy, and a page that was just written is read from the cache."""
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            return crc32_of(b"")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return f"{zlib.crc32(content):08x}"


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest with its own checksum, so that a flipped bit in it is noticed too."""
    body = {"version": VERSION, **asdict(manifest)}
    return to_json({"crc32": crc32_of(to_json(body)), "manifest": body})


def read_manifest(store: CheckpointStore, name: str) -> Manifest:
    """The manifest of a checkpoint. Raises CheckpointError if absent, damaged or of a newer layout."""
    where = f"{name}/{CHECKPOINT_MANIFEST}"
    try:
        document = json.loads(store.read(where).read_bytes())
        body = document["manifest"]
        if document["crc32"] != crc32_of(to_json(body)):
            raise CheckpointError(f"{where}: its checksum does not match its content")
        if body["version"] > VERSION:
            raise CheckpointError(
                f"{where}: layout version {body['version']}, this Headway reads up to {VERSION}",
                fix="upgrade Headway to the release that wrote it, or a later one",
            )
        files = tuple(FileEntry(**entry) for entry in body["files"])
        return Manifest(body["step"], body["serial"], body["world"], body["time"], files)
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise CheckpointError(f"{where}: not a readable manifest ({error})") from error


def read_state(store: CheckpointStore, name: str) -> TrainingState:
    """The training state of a checkpoint. Raises CheckpointError if it cannot be read."""
    where = f"{name}/{STATE}"
    try:
        return TrainingState(**json.loads(store.read(where).read_bytes()))
    except (ValueError, TypeError, OSError) as error:
        raise CheckpointError(f"{where}: not a readable training state ({error})") from error


def checkpoint_names(store: CheckpointStore) -> dict[str, bool]:
    """Every checkpoint folder in the store -> whether its manifest stands."""
    found: dict[str, bool] = {}
    for key in store.list():
        name, _, rest = key.partition("/")
        if step_of(name) is not None:
            found[name] = found.get(name, False) or rest == CHECKPOINT_MANIFEST
    return found
