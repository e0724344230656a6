"""What stays on the disk: the newest complete checkpoints, and nothing of saves that did not finish."""

from __future__ import annotations

import shutil

from headway.checkpoint.layout import checkpoint_names, read_manifest
from headway.checkpoint.seam import CheckpointStore
from headway.errors import CheckpointError
from headway.run.paths import CHECKPOINT_MANIFEST


def remove_leftovers(store: CheckpointStore) -> None:
    """Remove staged files and checkpoint folders without a manifest. Called when no rank is writing."""
    for name, complete in checkpoint_names(store).items():
        if not complete:
            store.delete(f"{name}/")
    for path in store.staging().iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def retain(store: CheckpointStore, newest: str, keep: int, protect: frozenset[str] = frozenset()) -> list[str]:
    """Delete the oldest checkpoints beyond `keep`; returns a notice for each that could not be deleted.

    `newest` is complete, or this would not be called; it and `protect` stay. A checkpoint whose manifest cannot be
    read counts as the oldest.
    """
    serials: dict[str, int] = {}
    for name, complete in checkpoint_names(store).items():
        if complete and name != newest:
            serials[name] = _serial(store, name)
    by_age = sorted(serials, key=lambda name: (serials[name], name), reverse=True)
    notices: list[str] = []
    for name in by_age[max(0, keep - 1) :]:
        if name in protect:
            continue
        try:
            # The manifest goes first: on a store that deletes one object at a time, an interrupted deletion leaves an
            # incomplete checkpoint, which is ignored, and not a complete one with missing files.
            store.delete(f"{name}/{CHECKPOINT_MANIFEST}")
            store.delete(f"{name}/")
        except CheckpointError as error:
            notices.append(f"the old checkpoint {name} could not be removed: {error}")
    return notices


def _serial(store: CheckpointStore, name: str) -> int:
    try:
        return read_manifest(store, name).serial
    except CheckpointError:
        return -1
