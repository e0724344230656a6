"""Which weights a model folder holds: one hash over its safetensors. No torch here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headway.data.raw import hash_raw
from headway.data.seam import InputFile
from headway.errors import DataError, ModelError
from headway.plan.schema import Plan

_INDEX = "model.safetensors.index.json"


def weights_identity(folder: Path, cache: Path) -> str:
    """sha256 over the names and contents of the folder's safetensors files, wherever it lies.

    Each file is read once as long as it does not change: its hash is kept in `cache`/hashes.json.

    Raises:
        ModelError: the folder has no safetensors, or they cannot be read.
    """
    names = _files(folder)
    if not names:
        fix = "point model.from at a folder that save_pretrained wrote"
        raise ModelError(f"{folder} has no safetensors", fix=fix)
    try:
        return hash_raw([InputFile(name, folder / name) for name in names], cache).sha256
    except DataError as error:
        said = "; ".join(f"{problem.where}: {problem.rule}" for problem in error.problems)
        raise ModelError(f"the weights of {folder} cannot be read: {said}", fix="check model.from") from error


def require_base(plan: Plan) -> None:
    """An adapter goes on beside the weights that its plan was made for. Raises ModelError where the folder differs."""
    if plan.adapter is None or not plan.adapter.base or plan.model.path is None:
        return
    # Beside the token store, where the plan's own reading left the hashes.
    found = weights_identity(Path(plan.model.path), Path(plan.data.store).parent)
    if found != plan.adapter.base:
        raise ModelError(
            f"{plan.model.path} is not the adapter's base model: its safetensors have the hash {found[:16]}, the plan "
            f"was made for {plan.adapter.base[:16]}; this would be an adapter for another base model",
            fix="restore the folder, or start a new run with this one",
        )


def _files(folder: Path) -> list[str]:
    if (folder / "model.safetensors").is_file():
        return ["model.safetensors"]
    try:
        index: dict[str, Any] = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        return sorted(set(index["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
