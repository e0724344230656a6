"""Find the checkpoint to resume from: the newest complete one whose files are as they were written."""

from __future__ import annotations

from typing import Literal, cast

from headway.checkpoint.layout import (
    CheckpointRef,
    FileEntry,
    checkpoint_names,
    crc32_of_file,
    read_manifest,
    step_of,
)
from headway.checkpoint.ranks import ALONE, Ranks, together
from headway.checkpoint.reader import StoredState
from headway.checkpoint.seam import CheckpointStore
from headway.errors import CheckpointError, Problem

Verify = Literal["full", "sizes"]

__all__ = ["StoredState", "Verify", "checkpoint_at", "newest_complete", "open_reader"]


def newest_complete(store: CheckpointStore, verify: Verify = "full", ranks: Ranks = ALONE) -> CheckpointRef:
    """The newest undamaged checkpoint. All ranks call it together and share the reading; all get the same answer.

    verify 'full' compares every file's size and checksum; 'sizes' compares all sizes and the checksums of the JSON
    files. A damaged checkpoint is named in the notices and the next older one is tried.

    Raises:
        CheckpointError: none is complete and undamaged; every one that was passed over is named with its damage.
    """
    refs, notices = _candidates(store, ranks)
    for ref in refs:
        damage = _damage(store, ref, verify, ranks)
        if not damage:
            return CheckpointRef(ref.name, ref.manifest, tuple(notices))
        notices += [f"{ref.name} is damaged and is passed over: {text}" for text in damage]
    if not notices:
        raise CheckpointError("there is no checkpoint to resume from", fix="start the run anew with `headway train`")
    problems = [Problem(notice.split(" ", 1)[0], notice.split(" ", 1)[1]) for notice in notices]
    raise CheckpointError(
        "no complete and undamaged checkpoint is left",
        problems=problems,
        fix="restore the files from a copy, or start the run anew with `headway train`",
    )


def checkpoint_at(store: CheckpointStore, step: int, verify: Verify = "full", ranks: Ranks = ALONE) -> CheckpointRef:
    """The newest checkpoint of this step. Raises CheckpointError if it is absent (naming those that are) or damaged."""
    refs, _ = _candidates(store, ranks)
    for ref in refs:
        if ref.step == step:
            damage = _damage(store, ref, verify, ranks)
            if damage:
                raise CheckpointError(f"{ref.name} is damaged", problems=[Problem(ref.name, text) for text in damage])
            return ref
    steps = ", ".join(str(ref.step) for ref in reversed(refs)) or "none"
    raise CheckpointError(f"there is no complete checkpoint of step {step}", fix=f"complete ones: {steps}")


def open_reader(store: CheckpointStore, ref: CheckpointRef) -> StoredState:
    """Open a checkpoint for reading any run of any state (a SliceReader, with .state and .random_state(rank))."""
    return StoredState(store, ref)


def _candidates(store: CheckpointStore, ranks: Ranks) -> tuple[list[CheckpointRef], list[str]]:
    """Rank 0's view for all ranks: readable manifests, newest first, and a notice for each other folder."""

    def look() -> tuple[list[CheckpointRef], list[str]] | None:
        if ranks.rank != 0:
            return None
        refs: list[CheckpointRef] = []
        notices: list[str] = []
        for name, complete in sorted(checkpoint_names(store).items(), key=lambda item: -(step_of(item[0]) or 0)):
            if not complete:
                notices.append(f"{name} is incomplete and is passed over: its save was interrupted (no manifest)")
                continue
            try:
                refs.append(CheckpointRef(name, read_manifest(store, name)))
            except CheckpointError as error:
                notices.append(f"{name} is damaged and is passed over: {error}")
        return sorted(refs, key=lambda ref: ref.manifest.serial, reverse=True), notices

    views = together(ranks, "looking for checkpoints", look)
    return cast("tuple[list[CheckpointRef], list[str]]", views[0])


def _damage(store: CheckpointStore, ref: CheckpointRef, verify: Verify, ranks: Ranks) -> list[str]:
    """What is wrong with the files; each rank reads every world-th one."""

    def check_share() -> list[str]:
        share = ref.manifest.files[ranks.rank :: ranks.world]
        return [text for entry in share if (text := _damage_of(store, ref.name, entry, verify))]

    found = together(ranks, f"checking {ref.name}", check_share)
    return [text for share in found for text in share]


def _damage_of(store: CheckpointStore, folder: str, entry: FileEntry, verify: Verify) -> str:
    try:
        path = store.read(f"{folder}/{entry.name}")
    except CheckpointError:
        return f"{entry.name} is absent"
    size_bytes = path.stat().st_size
    if size_bytes != entry.size_bytes:
        return f"{entry.name} has {size_bytes} bytes, {entry.size_bytes} were written"
    if verify == "full" or entry.name.endswith(".json"):
        crc32 = crc32_of_file(path)
        if crc32 != entry.crc32:
            return f"{entry.name} has checksum {crc32}, {entry.crc32} was written"
    return ""
