"""A model folder that the ecosystem loads: written beside its place, and put there when it is whole."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from headway.errors import ExportError
from headway.export.card import Provenance, record_json, render_card
from headway.export.census import Recorder
from headway.export.own import write_own
from headway.export.tokenizer import copy_tokenizer
from headway.model.adapter import CONFIG, LoraSource
from headway.model.seam import ModelSource
from headway.model.skeleton import tied_names
from headway.run.whole import write_whole

RECORD = "headway.json"
CARD = "README.md"
ADAPTER = "adapter"  # folder of the adapter within the merged model's
DIFF = "record.diff"  # as headway.json's record calls it
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_UNVERIFIED = "**Not verified yet**: the folder has not been loaded and compared."


@dataclass(frozen=True)
class ExportedFolder:
    """A whole export. `bytes` counts every file."""

    path: Path
    files: tuple[str, ...]
    bytes: int


def export_folder(
    source: ModelSource,
    weights: Iterable[tuple[str, torch.Tensor]],
    folder: Path,
    provenance: Provenance,
    *,
    model: nn.Module,
) -> ExportedFolder:
    """Write weights, configs, tokenizer, card and record; an earlier export in `folder` is replaced when this is whole.

    Called on one rank; the others only exhaust `Engine.full_weights()`.

    Args:
        weights: every parameter and persistent buffer, whole, as `Engine.full_weights()` gives them; of a model with an
            adapter, the adapter's.
        model: the trained module, for its config and its ties.

    Raises:
        ExportError: the weights are not the model's, the disk is full, or `folder` holds something else.
    """
    _require_own(folder)
    place = folder.resolve()  # a link to a folder on a larger disk stays a link
    partial = place.with_name(f".{place.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        _write(partial, source, weights, provenance, model)
        _put_in_place(partial, place)
    except (OSError, SafetensorError) as error:
        fix = "make room, or name a folder of your own with --out, and `headway export` the run again: its checkpoints"
        fix += " are untouched"
        raise ExportError(f"the model could not be written to {folder}: {error}", fix=fix) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    files = _files(folder)
    names = tuple(str(path.relative_to(folder)) for path in files)
    return ExportedFolder(folder, names, sum(path.stat().st_size for path in files))


def _write(
    folder: Path,
    source: ModelSource,
    weights: Iterable[tuple[str, torch.Tensor]],
    provenance: Provenance,
    model: nn.Module,
) -> None:
    """The whole model; or, as the plan says, the adapter beside its base, or both."""
    recorder = Recorder(DTYPES[provenance.plan.export.dtype])
    if isinstance(source, LoraSource):
        adapter = dict(weights)
        form = provenance.plan.export.adapter
        if form != "merged":
            place = folder if form == "adapter" else folder / ADAPTER
            _write_adapter(place, source, adapter, provenance)
        if form == "adapter":
            return
        source.save_merged(folder, recorder.watch(source.merged(adapter)), model)
    else:
        source.save(folder, recorder.watch(weights), model)
    if ":" in provenance.plan.model.kind:
        write_own(folder, provenance.plan, provenance.code)
    _complete(folder, recorder, provenance, tied=sorted(tied_names(model).items()))


def _write_adapter(folder: Path, source: LoraSource, adapter: dict[str, torch.Tensor], provenance: Provenance) -> None:
    folder.mkdir(exist_ok=True)
    recorder = Recorder(DTYPES[provenance.plan.export.dtype])
    source.save_adapter(folder, dict(recorder.watch(source.pairs(adapter).items())))
    if ":" in provenance.plan.model.kind:
        write_own(folder, provenance.plan, provenance.code, adapter=True)
    _complete(folder, recorder, provenance, tied=[])


def _complete(folder: Path, recorder: Recorder, provenance: Provenance, *, tied: list[tuple[str, str]]) -> None:
    """Tokenizer, record and card beside the weights."""
    if provenance.plan.data.tokenizer:
        copy_tokenizer(Path(provenance.plan.data.tokenizer), folder)
    if provenance.diff:
        (folder / DIFF).write_bytes(provenance.diff)
    record = {"format": 1, "verified": None, "check": None, **record_json(provenance)}
    record |= {"tensors": recorder.as_json(), "tied": tied}
    record |= {"files": {str(path.relative_to(folder)): _described(path) for path in _files(folder)}}
    write_json(folder / RECORD, record)
    (folder / CARD).write_text(render_card(provenance, _UNVERIFIED, adapter=is_adapter(folder)), encoding="utf-8")


def is_adapter(folder: Path) -> bool:
    """Whether the folder holds an adapter, which needs its base model."""
    return (folder / CONFIG).is_file()


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _require_own(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise ExportError(f"{folder} is a file", fix="name a folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / RECORD).is_file():
        raise ExportError(f"{folder} is not empty and no export of Headway", fix="choose another folder, or empty it")


def _put_in_place(partial: Path, folder: Path) -> None:
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    partial.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _described(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def write_json(path: Path, content: dict[str, Any]) -> None:
    write_whole(path, json.dumps(content, indent=2) + "\n")


def read_record(folder: Path) -> dict[str, Any]:
    """headway.json of an export. Raises ExportError where `folder` is none."""
    try:
        return json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ExportError(f"{folder} is not an export of Headway: {RECORD}: {error}") from error
