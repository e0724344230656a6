"""A checkpoint to a model folder, on one process, without a process group and without the ranks that wrote it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from headway.errors import ExportError
from headway.export.card import Provenance
from headway.export.compare import comparison
from headway.export.folder import ExportedFolder, export_folder
from headway.export.verify import ExportCheck
from headway.model.identity import require_base
from headway.model.naming import named_state
from headway.model.quantized import building_device
from headway.model.seam import ModelSource
from headway.model.source import source_of
from headway.parallel.building import build_filled
from headway.parallel.seam import SliceReader
from headway.parallel.slices import persistent_buffers
from headway.task.own import task_of


@dataclass(frozen=True)
class Exported:
    folder: ExportedFolder
    check: ExportCheck


def export_checkpoint(reader: SliceReader, folder: Path, provenance: Provenance) -> Exported:
    """Build the plan's model on the host, take its weights from the checkpoint, export and verify it.

    Holds the model in host memory twice, in fp32 and in the export's dtype. An export that differs is marked
    unverified; `exported.check.require()` raises.

    Raises:
        ExportError: the checkpoint does not hold the model's tensors, or the folder cannot be written.
        CheckpointError: a stored tensor cannot be read.
        ModelError: the base model of an adapter is absent, or is another one.
    """
    plan = provenance.plan
    require_base(plan)
    source: ModelSource = source_of(plan)
    model = source.build() if plan.adapter is None else build_filled(source, building_device(plan))
    load_weights(model, reader)
    exported = export_folder(source, _weights(model), folder, provenance, model=model)
    compared = comparison(plan, task_of(plan))
    return Exported(exported, compared.verify(folder, compared.measure(model), provenance))


@torch.no_grad()
def load_weights(model: nn.Module, reader: SliceReader) -> None:
    """Every parameter and persistent buffer of `model` from the checkpoint. Raises ExportError where one is absent."""
    tensors = dict(_weights(model))
    absent = sorted(tensors.keys() - set(reader.names()))
    extra = sorted(set(reader.names()) - tensors.keys())
    if absent or extra:
        raise ExportError(
            f"the checkpoint is of another model: {len(absent)} tensors absent {absent[:5]}, "
            f"{len(extra)} unknown {extra[:5]}"
        )
    buffers = persistent_buffers(model).keys()
    for name, tensor in tensors.items():
        kind = "buffer" if name in buffers else "weight"
        tensor.copy_(reader.read(name, kind, 0, tensor.numel()).view(tensor.shape))


def _weights(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The state's parameters, tied ones once, and persistent buffers."""
    for name, tensor in [*named_state(model), *persistent_buffers(model).items()]:
        yield name, tensor.detach()
