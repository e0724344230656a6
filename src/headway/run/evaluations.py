"""Evaluations of a run's checkpoints and exports, one file each, under the hash of what was evaluated."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headway.run.whole import write_whole

FOLDER = "evaluations"


@dataclass(frozen=True)
class Evaluation:
    """what: a checkpoint's name, or a model folder. sha256: of the checkpoint's manifest, or over the folder's weights.

    held_out: figures of the held-out data (its hash: data_hash); tasks: task -> metric -> value.
    """

    what: str
    sha256: str
    time: float  # unix seconds
    step: int | None = None
    held_out: dict[str, float] = field(default_factory=dict[str, float])
    data_hash: str = ""
    tasks: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    settings: dict[str, Any] = field(default_factory=dict[str, Any])


def keep(evaluation: Evaluation, root: Path) -> Path:
    """Write it under `root`/evaluations; what was found before of the same weights stays, but where found anew."""
    folder = root / FOLDER
    folder.mkdir(exist_ok=True)
    path = folder / f"{evaluation.sha256[:16]}.json"
    content = asdict(evaluation)
    before = _read(path)
    if before is not None:
        content["held_out"] = content["held_out"] or before.held_out
        content["data_hash"] = content["data_hash"] or before.data_hash
        content["tasks"] = {**before.tasks, **content["tasks"]}
        content["settings"] = {**before.settings, **content["settings"]}
    write_whole(path, json.dumps(content, indent=2) + "\n")
    return path


def read_all(root: Path) -> tuple[Evaluation, ...]:
    """All that stand under `root`, the oldest first; files that are damaged are left out."""
    found = (_read(path) for path in sorted((root / FOLDER).glob("*.json")))
    return tuple(sorted((one for one in found if one is not None), key=lambda one: one.time))


def _read(path: Path) -> Evaluation | None:
    try:
        return Evaluation(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
